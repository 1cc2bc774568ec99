"""A link with latency: later, in order, and no slower."""

import time

import torch

from workers.rehearsal.delayed import DelayedOutbound
from workers.shared.frames import Frame
from workers.transport.inprocess import InProcessEdge

LATENCY = 0.05  # seconds
FRAMES = 20


def test_frames_arrive_after_the_latency_in_order_and_overlap() -> None:
    edge = InProcessEdge(1, timeout=30)
    link = DelayedOutbound(edge, LATENCY * 1000)
    frames = [Frame(index, 0, 0, index, (index,), True) for index in range(FRAMES)]
    began = time.perf_counter()
    for frame in frames:
        link.send(frame, torch.full((1, 4), float(frame.index)))
    for frame in frames:
        assert edge.receive(frame)[0, 0] == frame.index
        assert time.perf_counter() - began >= LATENCY
    assert time.perf_counter() - began < FRAMES * LATENCY / 2


def test_closing_delivers_what_is_on_its_way() -> None:
    edge = InProcessEdge(1, timeout=30)
    link = DelayedOutbound(edge, LATENCY * 1000)
    frame = Frame(0, 0, 0, 0, (1,), True)
    link.send(frame, torch.ones(1, 4))
    link.close()
    assert edge.receive(frame).shape == (1, 4)

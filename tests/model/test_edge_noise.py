"""The ZeroMQ edge between two stages, to which anybody may connect: noise is dropped, frames arrive as they were."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import zmq
from hypothesis import given
from hypothesis import strategies as st

from workers.shared.errors import OutOfStep
from workers.shared.frames import Frame
from workers.transport.incoming import HEADER_BYTES, Incoming, Outgoing
from workers.transport.zeromq import ZmqInbound

KEY, HIDDEN = 0x1234_5678_9ABC_DEF0, 4
FRAME = Frame(7, 0, 3, 11, (5, 6), True)
TENSOR = torch.arange(2.0 * HIDDEN).view(2, HIDDEN)
WHOLE = bytes(Outgoing(KEY).message(FRAME, TENSOR))
STRANGER = bytes(Outgoing(KEY ^ 1).message(FRAME, TENSOR))  # of another engine

Edge = tuple["zmq.Socket[Any]", ZmqInbound]


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    context: zmq.Context[Any] = zmq.Context()
    inbound = context.socket(zmq.PULL)
    inbound.bind("inproc://edge")
    outbound = context.socket(zmq.PUSH)
    outbound.connect("inproc://edge")
    incoming = Incoming(KEY, 1, HIDDEN, torch.float32, torch.device("cpu"), 30, lambda: False)
    yield outbound, ZmqInbound(inbound, incoming)
    context.destroy(linger=0)


@given(st.lists(st.one_of(st.binary(max_size=2 * len(WHOLE)), st.just(STRANGER)), max_size=5))
def test_noise_is_dropped_and_counted_and_the_frame_behind_it_arrives(edge: Edge, noise: list[bytes]) -> None:
    outbound, inbound = edge
    dropped = inbound.dropped.count
    for data in (*noise, WHOLE):
        outbound.send(data)
    assert torch.equal(inbound.receive(FRAME), TENSOR)
    assert inbound.dropped.count == dropped + len(noise)


@given(st.integers(HEADER_BYTES, 2 * len(WHOLE)).filter(lambda size: size != len(WHOLE)))
def test_a_frame_of_another_size_is_not_computed_with(edge: Edge, size: int) -> None:
    outbound, inbound = edge
    outbound.send((WHOLE + bytes(len(WHOLE)))[:size])
    with pytest.raises(OutOfStep, match="bytes"):
        inbound.receive(FRAME)

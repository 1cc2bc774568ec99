"""Keeps a stage's card from clocking down while it waits: a small product now and then, on a stream of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from workers.decisions.warmth import Warmth
from workers.shared.messages import StageTimings

_SIZE = 512  # rows and columns: some microseconds of a card
_PATIENCE = 5.0  # seconds


@contextmanager
def kept_warm(device: torch.device, timings: StageTimings, seconds: float) -> Iterator[None]:
    """Within it `device`, if it is a GPU, stays warm for `seconds` after every frame that `timings` count."""
    if not seconds or device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    factor, product = (torch.zeros(_SIZE, _SIZE, dtype=torch.bfloat16, device=device) for _ in range(2))

    def work() -> None:
        with torch.cuda.stream(stream):
            torch.mm(factor, factor, out=product)

    with working(work, timings, seconds):
        yield


@contextmanager
def working(work: Callable[[], None], timings: StageTimings, seconds: float) -> Iterator[None]:
    """Within it a thread does `work` again and again while no frame is computed, for `seconds` after the last."""
    ended, warmth = threading.Event(), Warmth(seconds)

    def run() -> None:
        due, pause = warmth.look(time.monotonic(), timings.frames)
        while not ended.wait(pause):
            if due:
                work()
            due, pause = warmth.look(time.monotonic(), timings.frames)

    thread = threading.Thread(target=run, name="keeps warm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_PATIENCE)

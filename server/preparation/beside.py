"""Runs what may take long in a thread, so that the event loop goes on with other requests."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Bytes of a request that take about half a millisecond; a thread has to be woken up, and to wake the loop.
_SHORT = 1024


async def beside_the_loop(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, which goes through a request of `size` bytes."""
    if size <= _SHORT:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)

"""Gives up work whose client has gone."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody is left to answer."""


async def unless_disconnected(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """The result of `work`; cancels it and raises `ClientGone` as soon as the client disconnects.

    `receive` is read directly, after the body, because that also works below middleware that wraps it.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            watcher.result()
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""The least a server can do: the same messages on the same bus, and events of the same size, with nothing decided.

What the API server adds beyond this is its own; the rest is uvicorn, ZeroMQ, and processes waking each other.
"""

import asyncio
import itertools
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import zmq

from server.engine.bus_reader import BusReader
from server.settings import load_settings
from workers.shared.bus import encode, open_socket
from workers.shared.messages import FromEngine, Generate, Sampling, Tokens

_PROMPT = list(range(3, 30))
_EVENT = (
    b'data: {"id":"%b","created":1700000000,"model":"org/small","choices":[{"index":0,"delta":{"content":"%b"},'
    b'"logprobs":null,"finish_reason":null}],"object":"chat.completion.chunk"}\n\n'
)


class Relay:
    """An ASGI application that answers every POST with as many tokens as it asks for."""

    def __init__(self, bus: str) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = open_socket(self._context, zmq.DEALER, bus, bind=False)
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._queues: dict[str, asyncio.Queue[Tokens]] = {}
        self._numbers = itertools.count()
        self._reader: BusReader | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Serves one connection."""
        if scope["type"] != "http":
            return
        if self._reader is None:
            self._reader = BusReader(self._socket, self._take)
        body = bytearray()
        while scope["method"] == "POST":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        if body:
            await self._answer(msgspec.json.decode(body)["max_tokens"], send)
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, tokens: int, send: Any) -> None:
        assert self._reader is not None
        name = f"bare-{next(self._numbers)}"
        queue = self._queues[f"{name}-0"] = asyncio.Queue()
        self._socket.send(encode(Generate(f"{name}-0", _PROMPT, tokens, Sampling(seed=0))), zmq.DONTWAIT)
        self._reader.look()
        while True:
            message = await queue.get()
            await send({"type": "http.response.body", "body": _EVENT % (name.encode(), b"x"), "more_body": True})
            if message.finish is not None:
                return

    def _take(self, data: bytes) -> None:
        message = self._decoder.decode(data)
        if isinstance(message, Tokens):
            self._queues[message.id].put_nowait(message)


if __name__ == "__main__":
    settings = load_settings(Path(sys.argv[1]))
    uvicorn.run(
        Relay(settings.bus), port=settings.port, loop="uvloop", lifespan="off", access_log=False, log_level="warning"
    )

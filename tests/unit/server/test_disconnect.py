"""A client that leaves is noticed below middleware that wraps the channels, streaming or not."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from server.app import create_app
from server.service import Service
from server.settings import ServerSettings
from tests.small_model import write_model_folder
from tests.stub_engine import StubEngine
from workers.shared.fingerprint import server_fingerprint

pytestmark = pytest.mark.timeout(30)


class DoesNothing(BaseHTTPMiddleware):
    """What vLLM issue 10087 was about."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[StubEngine]:
    stub = StubEngine(f"ipc://{tmp_path}/bus", lambda request: [7, 8, 9], pause_after=1)
    stub.start()
    yield stub
    await asyncio.to_thread(stub.stop)


@pytest.fixture
async def service(engine: StubEngine, tmp_path: Path) -> Service:
    (tmp_path / "model").mkdir()
    folder = write_model_folder(tmp_path / "model")
    engine.fingerprint = server_fingerprint(folder)
    return Service.load(ServerSettings(str(folder), "small", engine.endpoint))


async def request(app: FastAPI, body: dict[str, Any], leave: asyncio.Event) -> list[Message]:
    """Runs the application on one request whose client leaves when told to."""
    sent: list[Message] = []
    inbox = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
async def test_the_engine_is_told(service: Service, engine: StubEngine, stream: bool, wrapped: bool) -> None:
    app = create_app(service)
    if wrapped:
        app.add_middleware(DoesNothing)
    body = {"model": "small", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    async with app.router.lifespan_context(app), asyncio.timeout(20):
        while not service.engine.healthy:
            await asyncio.sleep(0.01)
        leave = asyncio.Event()
        task = asyncio.create_task(request(app, body, leave))
        await asyncio.to_thread(engine.wait, lambda: len(engine.generates) == 1)
        assert service.engine.open_sequences == 1
        leave.set()
        await asyncio.to_thread(engine.wait, lambda: engine.aborts == [engine.generates[0].id], 1.0)
        await task
        assert service.engine.open_sequences == 0

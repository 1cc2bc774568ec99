"""Answers a planned request: one JSON response, or a stream of server-sent events fed by the same deltas."""

import logging
from collections.abc import AsyncIterator

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.disconnect import ClientGone, unless_disconnected
from server.errors import ApiError, bad_request
from server.formats import AnyFormat, Output
from server.generation import Generation
from server.plan import Plan
from server.reading import PLAIN, Reading
from server.service import Service, engine_errors

log = logging.getLogger("echelon.server")

_CLIENT_CLOSED_REQUEST = 499


async def answer(
    service: Service,
    request: Request,
    plan: Plan,
    form: AnyFormat,
    arrived: float,
    reading: Reading = PLAIN,
) -> Response:
    """The response to a planned request that arrived at `arrived` (service clock); raises `ApiError`."""
    headers = {"X-Echelon-Rehearsal": "true"} if service.rehearsal else {}
    capacity = service.engine.capacity
    if len(plan.generates) > capacity:
        # Waiting would not help, so this is not a 429.
        raise bad_request(f"'n' choices for every prompt make more than the {capacity} sequences of the queue", "n")
    with engine_errors():
        generation = Generation(service, plan, arrived, reading)
    if plan.stream:
        return EventStream(generation, form, headers, service.settings.ping_interval)
    try:
        with engine_errors():
            outputs = await unless_disconnected(request.receive, _collect(generation))
        body = msgspec.json.encode(form.whole(outputs, generation.usage))
        return Response(body, media_type="application/json", headers=headers)
    except ClientGone:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)
    finally:
        generation.close()


async def _collect(generation: Generation) -> list[Output]:
    outputs = [Output() for _ in generation.plan.generates]
    async for delta in generation.deltas():
        outputs[delta.index].add(delta)
    return outputs


class EventStream(EventSourceResponse):
    """Streams a generation, and ends it when the client leaves, even before the first event."""

    def __init__(self, generation: Generation, form: AnyFormat, headers: dict[str, str], ping: float) -> None:
        # Proxies cut streams that stay silent, as they do during a long prefill.
        super().__init__(_events(generation, form), headers=headers, ping=ping, sep="\n")
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # A generator that was never started has no `finally` to do this in.
            self._generation.close()


async def _events(generation: Generation, form: AnyFormat) -> AsyncIterator[ServerSentEvent]:
    """Chunks, or an error in their place, then what ends every stream: one never just ends."""
    try:
        with engine_errors():
            for chunk in form.opening():
                yield _event(form, chunk)
            async for delta in generation.deltas():
                for chunk in form.chunks(delta):
                    yield _event(form, chunk)
        for chunk in form.ending(generation.usage):
            yield _event(form, chunk)
    except ApiError as error:
        log.warning("%s: %s", generation.plan.id, error.message)
        for chunk in form.failed(error):
            yield _event(form, chunk)
    except Exception:  # the status line has gone out, so the error handlers cannot tell the client any more
        log.exception("%s: internal error in a stream", generation.plan.id)
        for chunk in form.failed(ApiError(500, "internal error")):
            yield _event(form, chunk)
    if form.last is not None:
        yield ServerSentEvent(form.last, sep="\n")


def _event(form: AnyFormat, chunk: msgspec.Struct) -> ServerSentEvent:
    return ServerSentEvent(msgspec.json.encode(chunk).decode(), event=form.event_name(chunk), sep="\n")

"""Answers a prepared request: one JSON response, or a stream of server-sent events fed by the same deltas."""

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from server.answering.disconnect import ClientGone, unless_disconnected
from server.answering.event_stream import EventStream, event
from server.answering.generation import Generation
from server.errors import ApiError, bad_request
from server.formatters.base import AnyFormat, Output
from server.middleware.request_id import request_id
from server.preparation.sequences import PreparedRequest
from server.service import Service, engine_errors

log = logging.getLogger("echelon.server")

_CLIENT_CLOSED_REQUEST = 499
_TRACE_CONTEXT = ("traceparent", "tracestate")  # W3C's


async def answer(
    service: Service,
    request: Request,
    prepared: PreparedRequest,
    form: AnyFormat,
    arrived: float,
) -> Response:
    """The response to a prepared request that arrived at `arrived` (service clock); raises `ApiError`."""
    headers = {"X-Echelon-Rehearsal": "true"} if service.rehearsal else {}
    with engine_errors():
        capacity = service.engine.capacity
    if len(prepared.generates) > capacity:
        # Waiting would not help, so this is not a 429.
        raise bad_request(f"'n' choices for every prompt make more than the {capacity} sequences of the queue", "n")
    with engine_errors():
        caller = {name: request.headers[name] for name in _TRACE_CONTEXT if name in request.headers}
        generation = Generation(service, prepared, arrived, request_id(request.scope), caller)
    if prepared.stream:
        return EventStream(_events(generation, form), generation.close, headers, service.settings.ping_interval)
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
    outputs = [Output() for _ in generation.request.generates]
    async for delta in generation.deltas():
        outputs[delta.index].add(delta)
    return outputs


async def _events(generation: Generation, form: AnyFormat) -> AsyncGenerator[bytes, None]:
    """Chunks, or an error in their place, then what ends every stream: one never just ends."""
    try:
        with engine_errors():
            yield _written(form, form.opening(generation.chunk_usage))
            async with aclosing(generation.deltas()) as deltas:
                async for delta in deltas:
                    yield _written(form, form.chunks(delta, generation.chunk_usage))
        ending = _written(form, form.ending(generation.usage))
    except ApiError as error:
        ending = _written(form, form.failed(error))
    except Exception:  # the status line has gone out, so the error handlers cannot tell the client any more
        log.exception("request=%s %s: internal error in a stream", generation.name, generation.request.id)
        told = ApiError(500, f"internal error; the server's log has it under request {generation.name}")
        ending = _written(form, form.failed(told))
    yield ending if form.last is None else ending + event(form.last)


def _written(form: AnyFormat, chunks: Iterable[msgspec.Struct]) -> bytes:
    """Events that go out together."""
    return b"".join(event(msgspec.json.encode(chunk), form.event_name(chunk)) for chunk in chunks)

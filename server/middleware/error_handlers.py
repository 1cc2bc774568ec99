"""Gives every 4xx and 5xx of the application OpenAI's error shape."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from server.errors import ApiError, bad_request
from server.metrics.requests import RequestMetrics
from server.middleware.request_id import request_id

log = logging.getLogger("echelon.request")


def install_error_handlers(app: FastAPI, metrics: RequestMetrics) -> None:
    """Registers handlers for every kind of exception that can reach the application."""

    def send(request: Request, error: ApiError) -> Response:
        metrics.refused.labels(str(error.status)).inc()
        return error_response(request.scope, error)

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return send(request, error)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return send(request, explain(error.errors()))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.method} is not allowed at {request.url.path}",
        }.get(error.status_code, str(error.detail))
        return send(request, ApiError(error.status_code, message, headers=error.headers))

    async def on_crash(request: Request, error: Exception) -> Response:
        # This response is made outside of all middleware.
        name = request_id(request.scope)
        told = f"internal error; the server's log has it under request {name}"
        return send(request, ApiError(500, told, headers={"X-Request-Id": name}))

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_crash)


def error_response(scope: Scope, error: ApiError) -> Response:
    """The HTTP response for an error, of which the log gets a line, unless somebody only looks at how the server is."""
    name = request_id(scope)
    log.log(
        logging.DEBUG if scope["method"] == "GET" else logging.INFO,
        "request=%s %s %s status=%d code=%s param=%s error=%r",
        name,
        scope["method"],
        scope["path"],
        error.status,
        error.code,
        error.param,
        error.message,
        extra={"request_id": name},
    )
    body = msgspec.json.encode(error.body)
    return Response(body, error.status, media_type="application/json", headers=error.headers)


def explain(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first of pydantic's findings as an error that names the parameter."""
    first = errors[0]
    location = list(first["loc"])[1:]  # after "body"
    if first["type"] == "json_invalid":
        return bad_request(f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}", None)
    if not location:
        return bad_request("send a JSON object as the body, with Content-Type: application/json", None)
    param = _path(location)
    if first["type"] == "extra_forbidden":
        return bad_request(f"Unrecognized request argument supplied: {param}", param, "unknown_parameter")
    if first["type"] == "missing":
        return bad_request(f"Missing required parameter: '{param}'", param, "missing_required_parameter")
    return bad_request(f"Invalid '{param}': {first['msg'].removeprefix('Value error, ')}", param, "invalid_value")


def _path(location: Sequence[str | int]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path

"""A route whose body is one JSON object, without FastAPI's search for dependencies, of which it has none.

The OpenAPI document, and every error, are those of an ordinary route.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response


class BodyRoute(APIRoute):
    """The endpoint takes `request` and `body`, and returns a response."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """See `APIRoute`; made once a route."""
        assert self.body_field is not None
        annotation: Any = self.body_field.field_info.annotation
        endpoint, adapter = self.endpoint, TypeAdapter[Any](annotation)

        async def handle(request: Request) -> Response:
            data = await request.body()
            response: Response = await endpoint(request=request, body=_checked(request, data, adapter))
            return response

        return handle


def _checked(request: Request, data: bytes, adapter: TypeAdapter[Any]) -> Any:
    """The body as its type; raises `RequestValidationError`."""
    if not data or not _is_json(request.headers.get("content-type", "")):
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        value = json.loads(data)
    except json.JSONDecodeError as error:
        found = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error", "input": {}}
        raise RequestValidationError([found | {"ctx": {"error": error.msg}}]) from error
    except (RecursionError, ValueError) as error:
        found = {"type": "json_invalid", "loc": ("body", 0), "msg": str(error), "input": {}}
        raise RequestValidationError([found]) from error
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        found_all = error.errors(include_url=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found_all]) from error


def _is_json(content_type: str) -> bool:
    """Whether it is `application/json`, or another type that is written as JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))

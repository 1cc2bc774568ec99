"""OpenAI's error shape: the exception routes raise, and the body every 4xx and 5xx carries."""

from collections.abc import Mapping

import msgspec

_TYPES = {401: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong, in OpenAI's four fields."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """Body of an error response, and data of an error event in a stream."""

    error: ErrorDetail


class ApiError(Exception):
    """An error to send to the client: `status` is the HTTP status, `param` names the offending field."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _writable(message)
        self.param = None if param is None else _writable(param)
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorBody:
        """The response body."""
        return ErrorBody(ErrorDetail(self.message, error_type(self.status), self.param, self.code))


def _writable(text: str) -> str:
    """`text`, which may quote the client, in a form that UTF-8 can write."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_type(status: int) -> str:
    """OpenAI's `type` for an HTTP status."""
    if status >= 500:
        return "server_error"
    return _TYPES.get(status, "invalid_request_error")


def bad_request(message: str, param: str | None, code: str | None = None) -> ApiError:
    """A 400 about one parameter."""
    return ApiError(400, message, param=param, code=code)


def context_length_exceeded(message: str, param: str) -> ApiError:
    """The 400 that agents recognise by its code, and answer by shortening their prompt."""
    return bad_request(message, param, "context_length_exceeded")

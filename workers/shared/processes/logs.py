"""What processes say on stderr: lines for people, or JSON objects with ECHELON_LOG_FORMAT=json."""

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType

from workers.shared.errors import ConfigError, EchelonError

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
FORMAT_VARIABLE = "ECHELON_LOG_FORMAT"
LEVEL_VARIABLE = "ECHELON_LOG_LEVEL"

_OPERATOR = "echelon.operator"  # lines that are told as they are
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Ours, as opposed to handlers of whoever uses this package."""


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == _OPERATOR else super().format(record)


class _Json(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info is not None and record.exc_info[0] is not None:
            fields["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields, default=str, ensure_ascii=False)


def configure(process: str) -> None:
    """Sets up this process's log on stderr; `process` names it in JSON. Raises `ConfigError` for a bad variable.

    In JSON, an exception that nobody catches is one object as well.
    """
    form, level = os.environ.get(FORMAT_VARIABLE) or "text", os.environ.get(LEVEL_VARIABLE) or "info"
    for variable, value, allowed in ((FORMAT_VARIABLE, form, FORMATS), (LEVEL_VARIABLE, level, LEVELS)):
        if value not in allowed:
            raise ConfigError(f"{variable} {value}: must be one of {', '.join(allowed)}")
    handler = _Handler(sys.stderr)
    handler.setFormatter(_Json(process) if form == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if form == "json":
        sys.excepthook = _log_uncaught


def tell(text: str, *, error: bool = False) -> None:
    """A line for the operator, as it is where it is text; it is information, or an error."""
    if any(isinstance(handler, _Handler) for handler in logging.getLogger().handlers):
        logging.getLogger(_OPERATOR).log(logging.ERROR if error else logging.INFO, "%s", text)
    else:  # a program that leaves logging alone
        print(text, file=sys.stderr, flush=True)


def tell_end(process: str, error: EchelonError) -> int:
    """Tells the `error` that ends `process`; its exit code is 2 where a restart would not mend it, and 1 otherwise."""
    tell(f"{process}: {error}", error=True)
    return 2 if isinstance(error, ConfigError) else 1


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(_OPERATOR).critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))

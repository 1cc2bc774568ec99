"""The base of every request body, and types that keep what JSON permits and the engine does not out of it."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

_MAX_DEPTH = 64
_MAX_JSON = 256 * 1024  # characters


def checked_text(value: str) -> str:
    """`value`; raises `ValueError` where it holds half of a surrogate pair, which no encoding can write."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode: it holds half of a surrogate pair") from None
    return value


def _checked_json(value: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            break
    if any(isinstance(item, dict | list) for item in level):
        raise ValueError(f"is nested more than {_MAX_DEPTH} levels deep")
    if len(checked_text(json.dumps(value, ensure_ascii=False))) > _MAX_JSON:
        raise ValueError(f"is longer than {_MAX_JSON} characters")
    return value


Text = Annotated[str, AfterValidator(checked_text)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_checked_json)]


class Body(BaseModel):
    """Unknown fields, strings for numbers, booleans for integers, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

"""The base of every request body, and types that keep what JSON permits and the engine does not out of it."""

import json
from collections.abc import Callable, Mapping
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


def too_deep(value: object) -> bool:
    """Whether a JSON value is nested more deeply than code that descends into it by recursion bears."""
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
    return any(isinstance(item, dict | list) for item in level)


def text_of_parts(*kinds: str) -> Callable[[object], object]:
    """A validator that joins a list of text parts of these types by line breaks, as vLLM does, because templates of
    text models expect a string. Other kinds of content are refused.
    """

    def joined(value: object) -> object:
        if not isinstance(value, list):
            return value
        texts = []
        for place, part in enumerate(value):
            known = isinstance(part, Mapping) and part.get("type") in kinds
            if not known or not isinstance(part.get("text"), str):
                raise ValueError(
                    f'part {place} must be {{"type": "{kinds[0]}", "text": "..."}}; this server takes text only'
                )
            texts.append(part["text"])
        return "\n".join(texts)

    return joined


def _checked_json(value: dict[str, Any]) -> dict[str, Any]:
    if too_deep(value):
        raise ValueError(f"is nested more than {_MAX_DEPTH} levels deep")
    if len(checked_text(json.dumps(value, ensure_ascii=False))) > _MAX_JSON:
        raise ValueError(f"is longer than {_MAX_JSON} characters")
    return value


Text = Annotated[str, AfterValidator(checked_text)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_checked_json)]


class Body(BaseModel):
    """Unknown fields, strings for numbers, booleans for integers, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

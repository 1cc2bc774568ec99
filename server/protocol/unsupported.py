"""Refuses, by name, what OpenAI's API has and this server has not: nothing is silently left undone."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from server.errors import bad_request

# The values that ask for nothing out of the ordinary.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "suffix": ("",),
}


def refuse_unsupported(body: BaseModel) -> None:
    """Raises a 400 `ApiError` that names the first parameter that asks for something unsupported."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise bad_request(f"'{name}' is not supported by this server; remove it", name, "unsupported_parameter")
    best_of = getattr(body, "best_of", None)
    if best_of is not None and best_of != (getattr(body, "n", None) or 1):
        raise bad_request(
            "'best_of' is not supported unless it equals 'n'; remove it", "best_of", "unsupported_parameter"
        )

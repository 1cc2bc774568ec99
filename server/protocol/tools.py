"""Tools in the bodies of requests."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from server.protocol.body import Body, JsonObject, Text

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(Body):
    """A function the model may call; without `parameters` it takes none."""

    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Body):
    """An entry of `tools`."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """Which function."""

    name: Text


class NamedTool(Body):
    """`tool_choice` as an object: this function must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def _arguments(value: str) -> str:
    try:
        parsed = json.loads(value or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("must be a JSON object, written as a string")
    return value


class CalledFunction(Body):
    """What the model called."""

    name: Text
    arguments: Annotated[Text, AfterValidator(_arguments)]

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments as templates expect them."""
        parsed: dict[str, Any] = json.loads(self.arguments or "{}")
        return parsed


class AssistantCall(Body):
    """A call in a message that the client sends back. `index` comes from clients that add up a stream."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

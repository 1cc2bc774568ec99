"""Tools in the bodies of requests."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from server.protocol.body import Body, JsonObject, Text, too_deep

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


def _written(value: object) -> object:
    return "" if value is None else value


class AssistantFunction(Body):
    """What the model called. An answer that was cut short leaves `arguments` that are no JSON."""

    name: Text
    arguments: Annotated[Text, BeforeValidator(_written)]

    @property
    def shown(self) -> dict[str, Any] | str:
        """The arguments as templates expect them: an object, or the text that is none."""
        try:
            parsed = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            parsed = None
        return parsed if isinstance(parsed, dict) and not too_deep(parsed) else self.arguments


class AssistantCall(Body):
    """A call in a message that the client sends back. `index` comes from clients that add up a stream."""

    id: Text
    type: Literal["function"] = "function"
    function: AssistantFunction
    index: int | None = None

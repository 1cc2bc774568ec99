"""Structured output in the bodies of requests: OpenAI's `response_format`, and vLLM's spellings of the rest."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from server.protocol.body import Body, JsonObject, Text

Pattern = Annotated[Text, Field(min_length=1, max_length=64 * 1024)]
Choices = Annotated[list[Annotated[Text, Field(min_length=1, max_length=4096)]], Field(min_length=1, max_length=1024)]

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class NamedSchema(Body):
    """`response_format.json_schema`; the schema is enforced whether `strict` is true or not."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    json_schema: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Body):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_goes_with_its_type(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("'json_schema' must be given with type json_schema, and with no other")
        return self


class StructuredOutputs(Body):
    """vLLM's `structured_outputs`: one of these."""

    json_: Annotated[JsonObject | Text | None, Field(alias="json")] = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None


class StructuredFields(Body):
    """What may restrict an answer; at most one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | Text | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None

    @property
    def restrictions(self) -> list[tuple[str, str, Any]]:
        """Each restriction that was asked for: parameter, kind and value."""
        found: list[tuple[str, str, Any]] = []
        if self.response_format is not None and self.response_format.type != "text":
            schema = self.response_format.json_schema
            found.append(("response_format", "json", ANY_OBJECT if schema is None else schema.json_schema))
        for name in ("json", "regex", "choice", "grammar"):
            value = getattr(self, f"guided_{name}")
            if value is not None:
                found.append((f"guided_{name}", name, value))
        other = self.structured_outputs
        if other is not None:
            named: list[tuple[str, Any]] = [
                ("json", other.json_),
                ("regex", other.regex),
                ("choice", other.choice),
                ("grammar", other.grammar),
            ]
            named.append(("json", ANY_OBJECT if other.json_object else None))
            found += [("structured_outputs", kind, value) for kind, value in named if value is not None]
        return found

"""From what a request asks of its answer to one grammar in llguidance's notation. Pure; raises `ApiError`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from server.errors import bad_request
from server.output.reasoning_parser import CLOSE, OPEN
from server.protocol.structured_output import StructuredFields
from server.tool_parsers.dialects import Dialect

Spelling = Callable[[str], str]  # text as Lark writes it, special tokens by their id

# One way to write a value means tokens that are known in advance, and no endless white space.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_MAX_GRAMMAR = 512 * 1024  # characters


@dataclass(frozen=True, slots=True)
class Restriction:
    """A grammar, and the parameter to blame if it does not compile."""

    param: str
    grammar: str


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Tool calls in an answer: it must consist of them, may consist of them instead of a restricted text, or has them
    between free text.
    """

    dialect: Dialect
    parameters: Mapping[str, Mapping[str, Any] | None]  # schema by function name
    parallel: bool
    place: Literal["alone", "instead", "between"]


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning that goes before a restricted answer; `opened` by the prompt already."""

    opened: bool


def quoted(text: str) -> str:
    """`text` as a string of Lark; nothing at all for no text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def restrict(
    fields: StructuredFields,
    calls: CallGrammar | None = None,
    *,
    thinking: Thinking | None = None,
    literal: Spelling = quoted,
) -> Restriction | None:
    """The grammar of an answer, None if it is free."""
    answer = None if calls is not None and calls.place != "instead" else _answer(fields)
    if answer is None and (calls is None or calls.place == "instead"):
        return None
    param = "tools" if answer is None else answer[0]
    parts: list[dict[str, Any]] = []
    rules: list[str] = []
    options: list[str] = []
    if answer is not None:
        parts.append(answer[1] | {"name": "answer"})
        options.append("@answer")
    if calls is not None:
        options.append("mixed" if calls.place == "between" else "calls")
        rules += _mixed_rules(calls, literal) if calls.place == "between" else _call_rules(calls, literal)
        parts += [
            _schema(parameters or _NO_PARAMETERS) | {"name": f"parameters_{place}"}
            for place, parameters in enumerate(calls.parameters.values())
        ]
    start = " | ".join(options)
    if thinking is not None:
        rules += _thought_rules(literal)
        start = f"thought ({start})" if thinking.opened else f"({literal(OPEN)} thought)? ({start})"
    if start == "@answer":
        return Restriction(param, _bounded(json.dumps({"grammars": parts}), param))
    lark = {"lark_grammar": "\n".join([f"start: {start}", *rules])}
    return Restriction(param, _bounded(json.dumps({"grammars": [lark, *parts]}), param))


def _thought_rules(literal: Spelling) -> list[str]:
    close = literal(CLOSE)
    # A mark that is spelled out could be part of the thought as well: the first one ends it.
    lazy = "[lazy]" if close == quoted(CLOSE) else ""
    return ["thought: marked /\\s*/", f"marked{lazy}: THOUGHT {close}", "THOUGHT: /(.|\\n)*/"]


def _answer(fields: StructuredFields) -> tuple[str, dict[str, Any]] | None:
    found = fields.restrictions
    if len(found) > 1:
        first, second = found[0][0], found[1][0]
        raise bad_request(f"'{first}' and '{second}' cannot both restrict the answer; send one of them", second)
    if not found:
        return None
    param, kind, value = found[0]
    if kind == "json":
        return param, _schema(_parsed(value, param) if isinstance(value, str) else value)
    if kind == "choice":
        return param, {"lark_grammar": f"start: {' | '.join(map(quoted, value))}"}
    if kind == "regex":
        return param, {"lark_grammar": f"start: /{_slashes(value)}/"}
    return param, {"lark_grammar": value}


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"json_schema": {**schema, "x-guidance": _COMPACT}}


def _parsed(text: str, param: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise bad_request(f"'{param}' must be a JSON schema: an object, or a string that holds one", param)
    return value


def _slashes(regex: str) -> str:
    """A regular expression as it stands between slashes in Lark."""
    escaped = False
    result = ""
    for char in regex:
        result += "\\/" if char == "/" and not escaped else "\\n" if char == "\n" else char
        escaped = char == "\\" and not escaped
    return result


def _mixed_rules(calls: CallGrammar, literal: Spelling) -> list[str]:
    """Free text in which the dialect's marker begins a call, always."""
    dialect = calls.dialect
    assert dialect.begins_with is not None
    marker = literal(dialect.begins_with)
    # The marker is part of the text before it, where its spelling is found first of all readings.
    lazy = "[lazy]" if marker == quoted(dialect.begins_with) else ""
    follows = replace(
        dialect,
        opening=dialect.opening.removeprefix(dialect.begins_with),
        before=dialect.before.removeprefix(dialect.begins_with),
    )
    several = calls.parallel and bool(dialect.opening)
    return [
        "mixed: (begun calls)* rest",
        f"begun{lazy}: TEXT {marker}",
        "rest: TEXT",
        "TEXT: /(.|\\n)*/",
        *_call_rules(replace(calls, dialect=follows, parallel=several), literal),
    ]


def _call_rules(calls: CallGrammar, literal: Spelling) -> list[str]:
    dialect = calls.dialect
    rules = []
    for place, name in enumerate(calls.parameters):
        before, after = literal(dialect.before.format(name=name)), literal(dialect.after)
        rules.append(f"call_{place}: {before} @parameters_{place} {after}".rstrip())
    rules.append("call: " + " | ".join(f"call_{place}" for place in range(len(calls.parameters))))
    more = f" ({literal(dialect.separator)} call)*" if calls.parallel else ""
    rules.append(f"calls: {literal(dialect.opening)} call{more} {literal(dialect.closing)}")
    return rules


def _bounded(grammar: str, param: str) -> str:
    if len(grammar) > _MAX_GRAMMAR:
        raise bad_request(f"'{param}' makes a grammar of more than {_MAX_GRAMMAR} characters", param)
    return grammar


def special_literal(special: Mapping[str, int]) -> Spelling:
    """How text is written in Lark where the tokens in `special` are not spelled out: `"text" <[7]> "text"`."""

    def literal(text: str) -> str:
        for name, number in special.items():
            if name in text:
                before, _, after = text.partition(name)
                return " ".join(filter(None, [literal(before), f"<[{number}]>", literal(after)]))
        return quoted(text)

    return literal

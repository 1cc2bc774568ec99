"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` in newer models."""

from collections.abc import Callable
from typing import Literal

from server.output.parts import CallPiece, Part, split_at
from server.tool_parsers.char_reader import CharReader, texts
from server.tool_parsers.json_text import JsonValue

MARKER, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
State = Literal["text", "marker", "list", "object", "name", "arguments", "after"]


class MistralReader(CharReader):
    """What follows a list, or an object of arguments, is skipped up to the next marker."""

    def __init__(self, new_id: Callable[[], str], *, single: bool = False, forced: bool = False) -> None:
        super().__init__(new_id, single=single, forced=forced)
        self._state: State = "text"
        self._value = JsonValue()

    def _flush(self) -> list[Part]:
        """Text that was held back; the name of a call that must be one, though nothing of its arguments has come."""
        held, self._held = self._held, ""
        if self._state == "text":
            return [] if self._calls.count and held.isspace() else texts(held)
        if self._state == "name" and self._forced and ARGS in held:
            return [self._calls.open(_name(held))]
        return []

    def _push(self, char: str) -> list[Part]:
        if self._state == "object":
            return self._object(char)
        if self._state == "arguments":
            return self._arguments(char)
        self._held += char
        if self._state in ("text", "after"):
            return self._text()
        if self._state == "name":
            return self._name(char)
        if self._state == "marker" and not char.isspace():
            self._state = "list" if char == "[" else "name"
            self._held = "" if char == "[" else char
        elif self._state == "list" and char == "{":
            self._state = "object"
            self._calls.begin()
            return [*self._calls.push(char)]
        elif self._state == "list" and char == "]":
            self._state, self._held = "after", ""
        return []

    def _text(self) -> list[Part]:
        shown = self._state == "text"
        text, self._held, marked = split_at(MARKER, self._held)
        if marked:
            self._state = "marker"
        return texts(text) if shown else []

    def _object(self, char: str) -> list[Part]:
        pieces = self._calls.push(char)
        if self._calls.current.done:
            self._state, self._held = "list", ""
            self.finished = self._single and self._calls.current.told
        return [*pieces]

    def _name(self, char: str) -> list[Part]:
        if char != "{":
            return []
        name = _name(self._held[:-1])
        self._state, self._held, self._value = "arguments", "", JsonValue()
        return [self._calls.open(name), *self._arguments(char)]

    def _arguments(self, char: str) -> list[Part]:
        self._value.push(char)
        if self._value.ended:
            self._state = "after"
            self.finished = self._single
        return [CallPiece(self._calls.count - 1, char)]


def _name(head: str) -> str:
    """Of what stands between the marker and the arguments."""
    return head.removesuffix(ARGS).split(CALL_ID)[0].strip()

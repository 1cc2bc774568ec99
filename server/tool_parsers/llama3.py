"""Llama 3's JSON calls: the answer is `{"name": ..., "parameters": {...}}`, or several of them separated by `;`."""

from collections.abc import Callable
from typing import Literal

from server.output.parts import Part, split_at
from server.tool_parsers.char_reader import CharReader, texts

MARKER = "<|python_tag|>"
State = Literal["start", "object", "between", "text"]


class Llama3Reader(CharReader):
    """An answer that begins with something else is text, until the marker that some of these models write."""

    def __init__(self, new_id: Callable[[], str], *, single: bool = False, forced: bool = False) -> None:
        super().__init__(new_id, single=single, forced=forced, needs_arguments=True)
        self._state: State = "start"

    def _flush(self) -> list[Part]:
        """What was held back and is no call."""
        text, self._held = self._held, ""
        return [] if self._calls.count and not text.strip("; \t\r\n,") else texts(text)

    def _push(self, char: str) -> list[Part]:
        if self._state == "object":
            return self._object(char)
        self._held += char
        text, held, marked = split_at(MARKER, self._held)
        if marked:
            self._state = "start"
        elif self._state != "text":
            blank = " \t\r\n" if self._state == "start" else "; \t\r\n,"
            if char == "{" and not self._held[:-1].strip(blank):
                self._state = "object"
                self._calls.begin()
                return [*self._calls.push(char)]
            if not self._held.strip(blank) or MARKER.startswith(self._held.lstrip(blank)):
                return []
            self._state = "text"
        self._held = held
        return texts(text)

    def _object(self, char: str) -> list[Part]:
        self._held += char
        parts: list[Part] = [*self._calls.push(char)]
        current = self._calls.current
        if current.told:
            self._held = ""
        if current.state == "ended":
            self._state = "between"
            self.finished = self._single
        elif current.state == "broken":
            self._state = "text"
            text, self._held = self._held, ""
            parts += texts(text)
        return parts

"""Llama 3's JSON calls: the answer is `{"name": ..., "parameters": {...}}`, or several of them separated by `;`."""

from collections.abc import Callable
from typing import Literal

from server.parts import Part, Text, merge, open_end
from server.tools.calls import Calls

MARKER = "<|python_tag|>"
State = Literal["start", "object", "between", "text"]


class Llama3Reader:
    """An answer that begins with something else is text, until the marker that some of these models write."""

    def __init__(self, new_id: Callable[[], str], *, single: bool = False) -> None:
        self._calls = Calls(new_id, needs_arguments=True)
        self._single = single
        self._state: State = "start"
        self._held = ""
        self.finished = False

    def push(self, piece: str) -> list[Part]:
        """Takes the next piece of text."""
        parts: list[Part] = []
        for char in piece:
            if self.finished:
                break
            parts += self._push(char)
        return merge(parts)

    def flush(self) -> list[Part]:
        """What was held back and is no call."""
        text, self._held = self._held, ""
        return [Text(text)] if text and not (self._calls.count and not text.strip("; \t\r\n,")) else []

    def _push(self, char: str) -> list[Part]:
        if self._state == "object":
            return self._object(char)
        self._held += char
        if self._held.endswith(MARKER):
            text, self._held, self._state = self._held[: -len(MARKER)].rstrip(), "", "start"
            return [Text(text)] if text else []
        if self._state != "text":
            blank = " \t\r\n" if self._state == "start" else "; \t\r\n,"
            if char == "{" and not self._held[:-1].strip(blank):
                self._state = "object"
                self._calls.begin()
                return [*self._calls.push(char)]
            if not self._held.strip(blank) or MARKER.startswith(self._held.lstrip(blank)):
                return []
            self._state = "text"
        certain = self._held[: len(self._held) - open_end(self._held, MARKER)].rstrip()
        self._held = self._held[len(certain) :]
        return [Text(certain)] if certain else []

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
            parts += [Text(text)] if text else []
        return parts

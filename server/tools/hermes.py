"""Hermes, Qwen and their kin: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` anywhere in the text."""

from collections.abc import Callable

from server.parts import Part, Text, merge, open_end
from server.tools.calls import Calls

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader:
    """Space around calls belongs to nobody. A block that holds no call is text as it stands.

    `single` ends the answer with the first call.
    """

    def __init__(self, new_id: Callable[[], str], *, single: bool = False) -> None:
        self._calls = Calls(new_id)
        self._single = single
        self._held = ""  # text that may be the beginning of a marker, or space before one
        self._inside = False
        self._raw = ""  # the block so far, while it may still turn out to be text
        self._closing = ""  # the end of a block, after its object
        self.finished = False

    def push(self, piece: str) -> list[Part]:
        """Takes the next piece of text."""
        parts: list[Part] = []
        for char in piece:
            if self.finished:
                break
            parts += self._block(char) if self._inside else self._text(char)
        return merge(parts)

    def flush(self) -> list[Part]:
        """A marker that was not completed, or a block without a call, is text; space after a call is not."""
        text = self._raw if self._inside else self._held
        self._held = self._raw = ""
        self._inside = False
        return [Text(text)] if text and not (self._calls.count and text.isspace()) else []

    def _text(self, char: str) -> list[Part]:
        self._held += char
        if self._held.endswith(OPEN):
            self._inside, self._raw, self._closing = True, OPEN, ""
            self._calls.begin()
            text, self._held = self._held[: -len(OPEN)].rstrip(), ""
            return [Text(text)] if text else []
        certain = self._held[: len(self._held) - open_end(self._held, OPEN)].rstrip()
        self._held = self._held[len(certain) :]
        return [Text(certain)] if certain else []

    def _block(self, char: str) -> list[Part]:
        current = self._calls.current
        if current.done:
            return self._close(char)
        self._raw += char
        parts: list[Part] = [*self._calls.push(char)]
        if current.told:
            self._raw = ""
        if current.state == "broken":
            self._closing = self._raw or char
            return [*parts, *self._close("")]
        if current.state == "ended":
            self.finished = self._single
        return parts

    def _close(self, char: str) -> list[Part]:
        """Skips what is left of the block; gives it back if no call was in it."""
        self._closing += char
        if not self._calls.current.told:
            self._raw += char
        if not self._closing.endswith(CLOSE):
            return []
        text, self._raw, self._closing = self._raw, "", ""
        self._inside = False
        return [Text(text)] if text else []

"""Hermes, Qwen and their kin: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` anywhere in the text."""

from collections.abc import Callable

from server.output.parts import Part, split_at
from server.tool_parsers.char_reader import CharReader, texts

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader(CharReader):
    """Space around calls belongs to nobody. A block that holds no call is text as it stands."""

    def __init__(self, new_id: Callable[[], str], *, single: bool = False, forced: bool = False) -> None:
        super().__init__(new_id, single=single, forced=forced)
        self._inside = False
        self._raw = ""  # the block so far, while it may still turn out to be text
        self._closing = ""  # the end of a block, after its object

    def _flush(self) -> list[Part]:
        """A marker that was not completed, or a block without a call, is text; space after a call is not."""
        text = self._raw if self._inside else self._held
        self._held = self._raw = ""
        self._inside = False
        return [] if self._calls.count and text.isspace() else texts(text)

    def _push(self, char: str) -> list[Part]:
        return self._block(char) if self._inside else self._text(char)

    def _text(self, char: str) -> list[Part]:
        text, self._held, begun = split_at(OPEN, self._held + char)
        if begun:
            self._inside, self._raw, self._closing = True, OPEN, ""
            self._calls.begin()
        return texts(text)

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
        return texts(text)

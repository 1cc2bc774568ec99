"""gpt-oss: an answer is several messages, each on a channel: what the model thinks, what it says, and calls.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`; a call is a message to
`functions.NAME` that holds its arguments.
"""

import re
from collections.abc import Callable

from server.output.parts import CallPiece, Part, Reasoning
from server.tool_parsers.char_reader import CharReader, texts

CHANNEL, MESSAGE, START, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (CHANNEL, MESSAGE, START, CONSTRAIN, *ENDS)

_HEADERS = (CHANNEL, MESSAGE, START, " to=")  # what one may begin with, right behind the prompt
_THOUGHT = "analysis"
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_CALLED = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyReader(CharReader):
    """An answer that does not begin with a header is text: a grammar that knows of no channels has made it."""

    def __init__(self, new_id: Callable[[], str], *, single: bool = False, forced: bool = False) -> None:
        super().__init__(new_id, single=single, forced=forced)
        self._began = False
        self._header: str | None = ""  # what has been read of one; None inside of a message
        self._channel = ""
        self._called = False  # whether the message is a call

    def _flush(self) -> list[Part]:
        """What only looked like a header or a marker is text; behind arguments it is the end that broke off."""
        held = self._held if self._header is None else self._header if not self._began else ""
        self._held, self._header = "", None
        return [] if self._called else self._of(held)

    def _push(self, char: str) -> list[Part]:
        if self._header is None:
            return self._body(char)
        self._header += char
        if not self._began and not any(self._header.startswith(one[: len(self._header)]) for one in _HEADERS):
            text, self._header, self._began = self._header, None, True
            return texts(text)
        self._began = self._began or any(self._header.startswith(one) for one in _HEADERS)
        return self._begin(self._header) if self._header.endswith(MESSAGE) else []

    def _begin(self, header: str) -> list[Part]:
        """A message begins."""
        self._header = None
        channel, called = _CHANNEL.search(header), _CALLED.search(header)
        self._channel = "" if channel is None else channel[1]
        self._called = called is not None
        return [] if called is None else [self._calls.open(called[1])]

    def _body(self, char: str) -> list[Part]:
        self._held += char
        if self._held in ENDS:
            self._held, self._header = "", ""
            self.finished = self._called and self._single
            return []
        certain = ""
        while self._held and not any(end.startswith(self._held) for end in ENDS):
            certain, self._held = certain + self._held[0], self._held[1:]
        return self._of(certain)

    def _of(self, text: str) -> list[Part]:
        if not text:
            return []
        if self._called:
            return [CallPiece(self._calls.count - 1, text)]
        return [Reasoning(text)] if self._channel == _THOUGHT else texts(text)

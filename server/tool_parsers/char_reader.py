"""What the readers of all dialects share: text is read one character at a time, until the answer is complete."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from server.output.parts import Part, Text, merge
from server.tool_parsers.calls import Calls


class CharReader(ABC):
    """A `Reader` of text with calls in it; `single` ends the answer with the first call."""

    def __init__(self, new_id: Callable[[], str], *, single: bool = False, needs_arguments: bool = False) -> None:
        self._calls = Calls(new_id, needs_arguments=needs_arguments)
        self._single = single
        self._held = ""  # text that may be the beginning of a marker, or space before one
        self.finished = False

    def push(self, piece: str) -> list[Part]:
        """Takes the next piece of text."""
        parts: list[Part] = []
        for char in piece:
            if self.finished:
                break
            parts += self._push(char)
        return merge(parts)

    @abstractmethod
    def flush(self) -> list[Part]:
        """What was held back, now that no more will come."""

    @abstractmethod
    def _push(self, char: str) -> list[Part]:
        """Takes the next character."""


def texts(text: str) -> list[Part]:
    """`text` as a part, if there is any."""
    return [Text(text)] if text else []

"""What the readers of all dialects share: text is read one character at a time, until the answer is complete."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from server.output.parts import Part, Text, merge
from server.tool_parsers.calls import Calls


class CharReader(ABC):
    """A `Reader` of text with calls in it; `single` ends the answer with the first call.

    `forced` says that a grammar lets the model write nothing but calls: what has been written of one is never text,
    not even where the answer breaks off, and a call stands as soon as its name does.
    """

    def __init__(
        self, new_id: Callable[[], str], *, single: bool = False, forced: bool = False, needs_arguments: bool = False
    ) -> None:
        self._calls = Calls(new_id, forced=forced, needs_arguments=needs_arguments)
        self._single = single
        self._forced = forced
        self._held = ""  # text that may be the beginning of a marker, or space before one
        self.finished = False

    def push(self, piece: str) -> list[Part]:
        """Takes the next piece of text."""
        parts: list[Part] = []
        for char in piece:
            if self.finished:
                break
            parts += self._push(char)
        return merge(self._wanted(parts))

    def flush(self) -> list[Part]:
        """What was held back, now that no more will come."""
        return self._wanted(self._flush())

    def _wanted(self, parts: list[Part]) -> list[Part]:
        return [part for part in parts if not isinstance(part, Text)] if self._forced else parts

    @abstractmethod
    def _flush(self) -> list[Part]:
        """What was held back, and is of use."""

    @abstractmethod
    def _push(self, char: str) -> list[Part]:
        """Takes the next character."""


def texts(text: str) -> list[Part]:
    """`text` as a part, if there is any."""
    return [Text(text)] if text else []

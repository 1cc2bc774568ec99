"""What an answer consists of, piece by piece, and the interface of whatever cuts text into such pieces."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of one tool call. `id` and `name` come once, with the first piece; `arguments` is JSON text in pieces."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Part = Text | Reasoning | CallPiece


class Reader(Protocol):
    """Cuts text into parts as it arrives.

    Invariant: the merged parts do not depend on how the text was cut into pieces.
    """

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, whatever the model would write next."""

    def push(self, piece: str) -> list[Part]:
        """Takes the next piece of text."""

    def flush(self) -> list[Part]:
        """What was held back, now that no more will come."""


class PlainReader:
    """All is text."""

    finished = False

    def push(self, piece: str) -> list[Part]:
        """The piece itself."""
        return [Text(piece)] if piece else []

    def flush(self) -> list[Part]:
        """Nothing is ever held back."""
        return []


def merge(parts: Iterable[Part]) -> list[Part]:
    """The same parts with neighbours of one kind joined."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Text) and isinstance(last, Text):
            merged[-1] = Text(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            merged[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, CallPiece) and isinstance(last, CallPiece) and part.index == last.index:
            merged[-1] = CallPiece(last.index, last.arguments + part.arguments, last.id, last.name)
        else:
            merged.append(part)
    return merged


def text_of(parts: Iterable[Part]) -> str:
    """The answer's text."""
    return "".join(part.text for part in parts if isinstance(part, Text))


def reasoning_of(parts: Iterable[Part]) -> str:
    """What the model thought."""
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def split_at(marker: str, text: str) -> tuple[str, str, bool]:
    """Of text that is read up to `marker`: what is certain, what must be held back, and whether the marker has come.

    Space before a marker belongs to nobody, so space at the end is held back.
    """
    if text.endswith(marker):
        return text[: -len(marker)].rstrip(), "", True
    open_end = next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-n:])), 0)
    certain = text[: len(text) - open_end].rstrip()
    return certain, text[len(certain) :], False

"""What the formats of all endpoints share: the interface, the whole output of a choice, and what responses repeat."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from server.assembler import Delta, ShownToken
from server.parts import Part, merge, text_of
from server.plan import Plan
from server.responses import Rehearsal, Usage
from server.tokenizer import ModelTokenizer


@dataclass(slots=True)
class Output:
    """All deltas of one choice, added up."""

    parts: list[Part] = field(default_factory=list)
    tokens: list[ShownToken] = field(default_factory=list)
    finish: str | None = None

    @property
    def text(self) -> str:
        """The text among the parts."""
        return text_of(self.parts)

    def add(self, delta: Delta) -> None:
        """Adds the next delta of this choice."""
        self.parts = merge([*self.parts, *delta.parts])
        self.tokens += delta.tokens
        self.finish = delta.finish or self.finish


class AnswerFormat(Protocol):
    """What an endpoint does differently from the others."""

    def opening(self) -> Sequence[msgspec.Struct]:
        """Chunks to send before the first token."""

    def chunks(self, delta: Delta) -> Sequence[msgspec.Struct]:
        """Chunks that carry `delta`."""

    def closing(self, usage: Usage) -> msgspec.Struct:
        """The chunk with the usage and no choices."""

    def whole(self, outputs: Sequence[Output], usage: Usage) -> msgspec.Struct:
        """The response that is not streamed."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk and response repeats."""

    plan: Plan
    model: str
    tokenizer: ModelTokenizer
    rehearsal: bool
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def mark(self) -> Rehearsal | UnsetType:
        """The field that says that the text means nothing, if so."""
        return Rehearsal() if self.rehearsal else UNSET

    @property
    def chunk_usage(self) -> UnsetType | None:
        """`usage` of every chunk but the last."""
        return None if self.plan.include_usage else UNSET

    def token_ids(self, tokens: Sequence[ShownToken]) -> list[int] | UnsetType:
        """`token_ids`, if asked for."""
        return [item.token for item in tokens] if self.plan.return_token_ids else UNSET

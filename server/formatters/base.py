"""What the formats of all endpoints share: the interface, the whole output of a choice, and what responses repeat."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from server.errors import ApiError, ErrorBody
from server.output.assembler import Delta, ShownToken
from server.output.parts import Part, merge, text_of
from server.preparation.sequences import PreparedRequest
from server.protocol.completion_objects import RehearsalMark, Usage
from server.tokenizer import ModelTokenizer

ChunkUsage = Usage | UnsetType | None  # what a chunk says of usage
Chunk = TypeVar("Chunk", bound=msgspec.Struct, covariant=True)


@dataclass(slots=True)
class Output:
    """All deltas of one choice, added up."""

    parts: list[Part] = field(default_factory=list)
    tokens: list[ShownToken] = field(default_factory=list)
    prompt: Sequence[ShownToken] = ()
    finish: str | None = None

    @property
    def text(self) -> str:
        """The text among the parts."""
        return text_of(self.parts)

    def add(self, delta: Delta) -> None:
        """Adds the next delta of this choice."""
        self.parts = merge([*self.parts, *delta.parts])
        self.tokens += delta.tokens
        self.prompt = self.prompt or delta.prompt
        self.finish = delta.finish or self.finish


class AnswerFormat(Protocol[Chunk]):
    """What an endpoint does differently from the others. `Chunk` is what the events of its stream hold."""

    @property
    def last(self) -> bytes | None:
        """Data of an event that ends every stream, if there is one."""

    def opening(self, usage: ChunkUsage) -> Sequence[Chunk]:
        """Chunks to send before the first token."""

    def chunks(self, delta: Delta, usage: ChunkUsage) -> Sequence[Chunk]:
        """Chunks that carry `delta`."""

    def ending(self, usage: Usage) -> Sequence[Chunk]:
        """Chunks to send after the last token."""

    def failed(self, error: ApiError) -> Sequence[msgspec.Struct]:
        """Chunks to send where the stream breaks."""

    def event_name(self, chunk: Any) -> str | None:
        """The name of a chunk's event, if it has one."""

    def whole(self, outputs: Sequence[Output], usage: Usage) -> msgspec.Struct:
        """The response that is not streamed."""


AnyFormat = AnswerFormat[msgspec.Struct]


class DataStream:
    """What the formats of the older endpoints share: events without a name, and [DONE] as the last."""

    last = b"[DONE]"

    def failed(self, error: ApiError) -> list[ErrorBody]:
        """The error in its usual shape."""
        return [error.body]

    def event_name(self, chunk: object) -> None:
        """Events have no name."""
        return


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk and response repeats."""

    request: PreparedRequest
    model: str
    tokenizer: ModelTokenizer
    rehearsal: bool
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def mark(self) -> RehearsalMark | UnsetType:
        """The field that says that the text means nothing, if so."""
        return RehearsalMark() if self.rehearsal else UNSET

    def token_ids(self, tokens: Sequence[ShownToken]) -> list[int] | UnsetType:
        """`token_ids`, if asked for."""
        return [item.token for item in tokens] if self.request.return_token_ids else UNSET

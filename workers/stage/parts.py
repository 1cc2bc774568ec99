"""What a stage is put together from: its layers, its ends of the channels, its edges, and the tail of the last one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from workers.shared.frames import Branches, Frame, Move
from workers.shared.messages import FromStage, Open, Sample, ToStage
from workers.stage.compiler import GrammarCompiler
from workers.transport.base import Inbound, Outbound


class Layers(Protocol):
    """What a stage needs of its shard (`workers.model.shard.Shard`)."""

    hidden_size: int
    dtype: torch.dtype
    device: torch.device
    weight_bytes: int
    kv_bytes: int

    def observe(self, anchors: Sequence[int]) -> None:
        """Asks for hidden states by index, as far as they are this stage's."""

    def copy(self, source: int, target: int, positions: int) -> None:
        """The first `positions` of slot `target` are from now on those of slot `source`."""

    def release(self, sequence: int, kept: int) -> None:
        """Slot `sequence` needs no memory but for its first `kept` positions until more of it is written."""

    def move(self, sequence: int, moves: Sequence[Move]) -> None:
        """Keys and values of tokens go from scratch to the rows of their positions."""

    def forward(
        self,
        sequence: int,
        position: int,
        tokens: Sequence[int],
        hidden: Tensor | None,
        taps: list[Tensor] | None = None,
        branches: Branches | None = None,
    ) -> Tensor:
        """`[T, H]` in (None for the first stage, which embeds `tokens`), `[T, H]` out; `taps` gets what is observed.

        Without `branches`, tokens follow each other from `position` on.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """`[V]` float32 logits after the last row of `hidden` `[T, H]`; the last stage only."""

    def row_logits(self, hidden: Tensor) -> Tensor:
        """`[T, V]` float32 logits after every row of `hidden` `[T, H]`; the last stage only."""


class Channel(Protocol):
    """What a stage needs of its control and results channels (`workers.stage.channel`)."""

    def heard(self, *, wait: bool) -> Iterator[ToStage]:
        """Everything that has arrived; waits for the first message if asked to."""

    def report(self, message: FromStage) -> None:
        """Sends to rank 0."""


class SamplingHead(Protocol):
    """What the last stage needs of its tail (`workers.stage.tail.Tail`)."""

    def open(self, message: Open) -> None:
        """A new request takes a slot over."""

    def finish(self, frame: Frame, hidden: Tensor, first: int | None = 0) -> Sample:
        """Samples after a live frame whose hidden states are `hidden` `[T, H]`.

        That is after row `first`, which holds the newest verified token, and on from there; nowhere if no row does.
        """

    def prepare(self) -> None:
        """Called when the sample is on its way: what can be done for the next one before its frame comes."""


@dataclass
class StageParts:
    """The parts of one stage. The first has no `inbound`, the last no `outbound` but a `tail` and a `compiler`."""

    layers: Layers
    channel: Channel
    inbound: Inbound | None = None
    outbound: Outbound | None = None
    tail: SamplingHead | None = None
    compiler: GrammarCompiler | None = None

"""Hidden states of one slot's text as stages send them, in memory that is there from the start."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from speculation.decisions.taps import TapLedger
from workers.shared.messages import Tap


class TapBuffer:
    """Hidden states by position; what `ledger` counts as held is here."""

    def __init__(
        self,
        columns: Mapping[int, Sequence[int]],
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """`columns` says which columns of the `shape` (positions, columns, H) each stage fills, in its own order."""
        self.states = torch.zeros(shape, dtype=dtype, device=device)
        self.ledger = TapLedger(shape[0], columns)
        self.columns = {stage: list(places) for stage, places in columns.items()}

    def store(self, tap: Tap) -> None:
        """Keeps the rows of a tap that are of use."""
        columns = self.columns[tap.stage]
        width = self.states.shape[-1]
        dtype: torch.dtype = getattr(torch, tap.dtype)
        rows = len(tap.data) // (len(columns) * width * dtype.itemsize)
        kept = self.ledger.place(tap.stage, tap.epoch, tap.position, rows)
        if kept:
            self.states[tap.position : tap.position + kept, columns] = self.unpack(tap)[:kept].to(self.states)

    def unpack(self, tap: Tap) -> Tensor:
        """The hidden states of a tap: `[rows, columns of its stage, H]`."""
        states = torch.frombuffer(bytearray(tap.data), dtype=getattr(torch, tap.dtype))
        return states.view(-1, len(self.columns[tap.stage]), self.states.shape[-1])

    def put(self, stage: int, epoch: int, position: int, row: Tensor) -> None:
        """Keeps what a stage has sent of one token in a frame of `epoch`, `[its columns, H]`, if it is of use."""
        if self.ledger.place(stage, epoch, position, 1):
            self.states[position, self.columns[stage]] = row.to(self.states)

    def copy(self, other: "TapBuffer", positions: int) -> None:
        """Holds what `other` holds of its first `positions`; the ledger's `begin` follows."""
        self.states[:positions] = other.states[:positions]
        self.ledger.copy(other.ledger)

    def filled(self, columns: int | None = None) -> int:
        """Positions, from 0, whose first so many `columns` are held, as far as stages fill them; by default all."""
        if columns is None:
            return self.ledger.filled()
        return self.ledger.filled(stage for stage, places in self.columns.items() if places[0] < columns)

    def rows(self, start: int, end: int) -> Tensor:
        """Hidden states `[end - start, columns, H]` of these positions."""
        return self.states[start:end]

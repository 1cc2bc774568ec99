"""Rotary position embeddings for every position a slot can hold, computed once by the model's own module."""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

CosSin = tuple[Tensor, ...] | Tensor  # cosines and sines, or complex numbers of length 1

_CHUNK = 4096  # positions computed at once: bounds the float32 intermediates


class RotaryTables:
    """Cosines and sines by position, one pair of tables for each kind of layer.

    Bit for bit what the module itself returns for a position. Where a model rotates long sequences otherwise than short
    ones (longrope), the tables are those of the longest sequence that a slot can hold: a token's rotation never depends
    on what follows.
    """

    def __init__(
        self, module: nn.Module, layer_kinds: Sequence[str], *, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`module` is the model's rotary embedding with its float32 frequencies, on the CPU.

        `layer_kinds` names the kind of each layer; it only matters to a module that takes a `layer_type`.
        """
        by_kind = "layer_type" in inspect.signature(module.forward).parameters
        self._kind_of_layer = list(layer_kinds) if by_kind else [""] * len(layer_kinds)
        like = torch.empty(0, dtype=dtype)
        self._tables: dict[str, tuple[Tensor, ...]] = {}
        for kind in dict.fromkeys(self._kind_of_layer):
            arguments = {"layer_type": kind} if by_kind else {}
            chunks = []
            for start in range(0, max_len, _CHUNK):
                # The last position of all goes along, for whatever depends on how long a sequence is.
                positions = torch.tensor([[*range(start, min(start + _CHUNK, max_len)), max_len - 1]])
                made = module(like, positions, **arguments)
                chunks.append([table[:, :-1] for table in (made if isinstance(made, tuple) else (made,))])
            self._tables[kind] = tuple(torch.cat(tables, dim=1).to(device) for tables in zip(*chunks, strict=True))

    def at(self, position: int, end: int) -> list[CosSin]:
        """For each layer the cosines and sines, [1, end - position, rotary size] each, of these positions."""
        return self._at(slice(position, end))

    def rows(self, positions: Tensor) -> list[CosSin]:
        """The same for any `positions` [rows], in any order."""
        return self._at(positions)

    def _at(self, rows: slice | Tensor) -> list[CosSin]:
        views: dict[str, CosSin] = {}
        for kind, tables in self._tables.items():
            one, *more = (table[:, rows] for table in tables)
            views[kind] = (one, *more) if more else one
        return [views[kind] for kind in self._kind_of_layer]


class NoRotation:
    """What stands for the tables of a model that rotates nothing."""

    def __init__(self, layers: int) -> None:
        self._layers = layers

    def at(self, position: int, end: int) -> list[None]:
        """Nothing, for each layer."""
        return [None] * self._layers

    def rows(self, positions: Tensor) -> list[None]:
        """Nothing, for each layer."""
        return [None] * self._layers

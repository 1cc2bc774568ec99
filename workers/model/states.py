"""States of recurrent and convolution layers, of every slot, in the form in which transformers' layers ask for them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.decisions.state_entries import StateEntries
from workers.shared.errors import OutOfStep
from workers.shared.model_files.layers import SNAPSHOTS, StateShape, ring_entries

_Pair = tuple[Tensor, Tensor | None]  # convolution and recurrent state


class StateSlice:
    """Preallocated states of one stage's layers; which entry is which is for `StateEntries` to say."""

    def __init__(
        self,
        shapes: Mapping[int, StateShape],
        *,
        sequences: int,
        ahead: int,
        chunk: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocates states of the global layer indices in `shapes`, for `ahead` tokens in flight and some snapshots."""
        self._entries = [StateEntries(ring_entries(ahead), SNAPSHOTS, chunk) for _ in range(sequences)]
        count = self._entries[0].count
        self._pairs: list[dict[int, _Pair]] = [
            {
                layer: (
                    torch.zeros((count, 1, *shape.conv), dtype=dtype, device=device),
                    None if shape.recurrent is None else torch.zeros((count, 1, *shape.recurrent), device=device),
                )
                for layer, shape in shapes.items()
            }
            for _ in range(sequences)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(
            tensor.nbytes for layers in self._pairs for pair in layers.values() for tensor in pair if tensor is not None
        )

    def is_chunk(self, position: int, length: int) -> bool:
        """Whether a frame is a whole prompt chunk."""
        return self._entries[0].is_chunk(position, length)

    def frame(self, sequence: int, position: int, length: int, *, chunk: bool) -> "FrameStates":
        """The states of some tokens, with which a whole prompt `chunk` may end.

        Raises `OutOfStep` where the one that it begins with is not kept."""
        entries = self._entries[sequence]
        source = entries.source(position)
        return FrameStates(self._pairs[sequence], source, list(entries.wrote(position, length, chunk=chunk)))


class FrameStates:
    """What a layer takes for its cache while one frame is computed.

    Layers may change the states that they are given in place, so these are the frame's own entry from the start: a copy
    of the one behind the position before.
    """

    def __init__(self, pairs: Mapping[int, _Pair], source: int | None, targets: list[int]) -> None:
        self._pairs = pairs
        self._source = source
        self._own, *self._snapshots = targets

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """[1, channels, kernel]; None at the beginning of a sequence."""
        return self._begin(self._pairs[layer_idx][0])

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """[1, heads, rows, columns], float32; None at the beginning of a sequence."""
        states = self._pairs[layer_idx][1]
        return None if states is None else self._begin(states)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Takes the frame's inputs [1, channels, T]; returns them behind those that the convolution looks back on."""
        own = self._pairs[layer_idx][0][self._own]
        kernel = own.shape[-1]
        if self._source is not None:
            conv_states = torch.cat([own, conv_states], dim=-1)
        elif conv_states.shape[-1] < kernel:
            conv_states = torch.nn.functional.pad(conv_states, (kernel - conv_states.shape[-1], 0))
        own.copy_(conv_states[..., -kernel:])
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Takes the state behind the frame's last position."""
        states = self._pairs[layer_idx][1]
        if states is None or states[self._own].shape != recurrent_states.shape:
            raise OutOfStep(f"layer {layer_idx} has a state of shape {list(recurrent_states.shape)}, which is not ours")
        return states[self._own].copy_(recurrent_states)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values are none of ours: our attention writes and reads them."""
        return keys, values

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether anything was read before this frame."""
        return self._source is not None

    def is_recording_past(self, layer_idx: int) -> bool:
        """Never: rolling back is reading an older entry."""
        return False

    def keep_snapshots(self) -> None:
        """To be called when every layer has been computed: the end of a whole chunk is copied to its own entry."""
        for entry in self._snapshots:
            for pair in self._pairs.values():
                for states in pair:
                    if states is not None:
                        states[entry].copy_(states[self._own])

    def _begin(self, states: Tensor) -> Tensor | None:
        if self._source is None:
            return None
        own = states[self._own]
        if self._source != self._own:
            own.copy_(states[self._source])
        return own

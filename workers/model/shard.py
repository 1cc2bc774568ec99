"""One stage's share of the target model: decoder layers, with the embedding or the LM head at the ends."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workers.model.attention import FrameContext, Rows, TreeContext
from workers.model.decoder_layer import DecoderLayer
from workers.model.fused import fused
from workers.model.kv_cache import KVSlice
from workers.model.loader import Progress, Target, load_config, said_of
from workers.model.rotary import CosSin, NoRotation, RotaryTables
from workers.model.states import FrameStates, StateSlice
from workers.shared.errors import ConfigError, OutOfStep
from workers.shared.frames import Branches, Move
from workers.shared.memory import Need, available_host_bytes, check_fits, host_bytes
from workers.shared.model_files.families import family_of
from workers.shared.model_files.layers import (
    kv_bytes_per_position,
    layer_plans,
    state_bytes,
    window_bytes_per_position,
)
from workers.shared.model_files.windows import WindowRule
from workers.shared.packed.rounding import Rounding


class Scales(NamedTuple):
    """What a model multiplies its embeddings and its logits by, and what bounds the latter."""

    embeddings: float = 1.0
    logits: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Scales":
        """From the configuration of a supported family, with its defaults filled in."""
        family = family_of(config)
        embeddings = float(config[family.embedding_factor]) if family.embedding_factor else 1.0
        logits = float(config[family.logits_factor]) if family.logits_factor else 1.0
        if family.logits_divisor:
            logits /= config[family.logits_divisor]
        return cls(embeddings, logits, config.get("final_logit_softcapping"))

    def scaled(self, logits: Tensor) -> Tensor:
        """What the model makes of the scores of its head."""
        if self.logits != 1.0:
            logits = logits * self.logits
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class Shard:
    """Computes frames through its layers; holds their weights and their keys and values, and nothing else.

    A token alone in its frame gets the same bits whatever was computed before or after it, and wherever the model is
    split. Not safe for use by several threads.
    """

    def __init__(
        self,
        target: Target,
        kv: KVSlice,
        states: StateSlice | None,
        rotary: RotaryTables | NoRotation,
        *,
        indices: range,
        wide: int,
        positioned: bool,
        hidden_size: int,
        vocab_size: int,
        scales: Scales,
        weight_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Use `load`."""
        self.hidden_size = hidden_size
        self.dtype = dtype
        self.device = device
        self.weight_bytes = weight_bytes
        self.kv_bytes = kv.nbytes
        self.state_bytes = 0 if states is None else states.nbytes
        self._layers = [
            DecoderLayer(module, stateful=states is not None, positioned=positioned) for module in target.layers
        ]
        self._states = states
        self._wide = wide
        self._indices = indices
        self.tapped: Sequence[int] = ()  # layers of this shard, from 0, behind which somebody observes
        self._embedding = target.embedding
        self._norm = target.norm
        self._head = target.head
        self.vocab_size = vocab_size
        self._scales = scales
        self.kv = kv
        self.rotary = rotary

    @classmethod
    def load(
        cls,
        path: Path,
        layers: range,
        *,
        first: bool,
        last: bool,
        dtype: torch.dtype,
        device: torch.device,
        max_len: int,
        sequences: int,
        pool: int = 0,
        kv_dtype: torch.dtype | None = None,
        windows: WindowRule | None = None,
        rounding: Rounding | None = None,
        ahead: int = 8,
        wide: int = 1,
        chunk: int = 128,
        scratch: int = 0,
        progress: Progress | None = None,
    ) -> "Shard":
        """Reads the layers with global indices `layers` from a prepared model folder and allocates their KV slice.

        With `rounding`, linear layers of a CPU hold weights of fewer bits than the checkpoint.

        What follows matters to models with recurrent states only: at most `ahead` tokens of a sequence are in flight
        behind its oldest one that is not verified, a frame of up to `wide` tokens may be rejected within, and prompts
        come in chunks of `chunk` tokens.

        Beside its positions each slot has `scratch` rows, for drafts of which several stand at one position.

        `progress(bytes, total)` is called after each tensor. Raises `ConfigError` where the model is not supported,
        the checkpoint is incomplete, or weights and `sequences` slots of `max_len` positions do not fit into memory,
        or where given only `pool` positions, which all slots share. Keys and values are of `dtype` or `kv_dtype`; by
        `windows`, layers that see no further back keep no more, and a prompt can begin where that says.
        """
        config = load_config(path)
        longest: int = config.max_position_embeddings
        if not 1 <= max_len <= longest:
            raise ConfigError(f"--max-model-len {max_len}: this model has from 1 to {longest} positions")
        target = Target(path, config, layers, first=first, last=last, rounding=rounding)
        said = said_of(config)
        plans = layer_plans(said)
        shapes = {layer: plan.state for layer in layers if (plan := plans[layer]).state is not None}
        weight_bytes = target.weight_bytes(dtype, device)
        item = (kv_dtype or dtype).itemsize
        need = Need(
            f"stage with {len(layers)} layers",
            str(device),
            weight_bytes + sequences * state_bytes(said, layers, ahead, dtype.itemsize),
            kv_bytes_per_position(said, layers, 1, item),
            sequences,
            pool,
            scratch=scratch,
            window_bytes=0 if windows is None else window_bytes_per_position(said, layers, item),
            window_most=0 if windows is None else windows.most,
        )
        check_fits([need], max_len, available_bytes(device))
        target.load(dtype, device, progress)
        kinds: Sequence[str] = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
        kv = KVSlice(
            {layer: kv for layer in layers if (kv := plans[layer].kv) is not None},
            sequences=sequences,
            max_len=max_len,
            dtype=kv_dtype or dtype,
            device=device,
            scratch=scratch,
            rule=windows,
        )
        states = None
        if any(plan.state for plan in plans):
            states = StateSlice(shapes, sequences=sequences, ahead=ahead, chunk=chunk, dtype=dtype, device=device)
        return cls(
            target,
            kv,
            states,
            NoRotation(len(layers))
            if target.rotary is None
            else RotaryTables(
                target.rotary, [kinds[index] for index in layers], max_len=max_len, dtype=dtype, device=device
            ),
            indices=layers,
            wide=wide,
            positioned=family_of(said).positioned,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            scales=Scales.of(said),
            weight_bytes=weight_bytes,
            dtype=dtype,
            device=device,
        )

    def observe(self, anchors: Sequence[int]) -> None:
        """Asks for the hidden states with these indices, as far as this shard has them: k is behind layer k - 1."""
        self.tapped = [layer for layer, index in enumerate(self._indices) if index + 1 in anchors]

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return len(self._layers)

    @property
    def embeds(self) -> bool:
        """Whether this is the first stage, which is given tokens instead of hidden states."""
        return self._embedding is not None

    @property
    def has_head(self) -> bool:
        """Whether this is the last stage."""
        return self._head is not None

    @property
    def recurrent(self) -> bool:
        """Whether layers keep states."""
        return self._states is not None

    @property
    def lends(self) -> bool:
        """Whether slots may copy from each other: recurrent states stay in theirs."""
        return self._states is None

    def copy(self, source: int, target: int, positions: int) -> None:
        """The first `positions` of slot `target` are from now on those of slot `source`, where `lends`."""
        self.kv.copy(source, target, positions)

    def release(self, sequence: int, kept: int) -> None:
        """Slot `sequence` needs no memory but for its first `kept` positions until more of it is written."""
        self.kv.release(sequence, kept)

    @torch.inference_mode()
    def move(self, sequence: int, moves: Sequence[Move]) -> None:
        """Keys and values of tokens go from scratch to the rows of their positions."""
        self.kv.move(sequence, moves)

    @torch.inference_mode()
    def forward(
        self,
        sequence: int,
        position: int,
        tokens: Sequence[int],
        hidden: Tensor | None,
        taps: list[Tensor] | None = None,
        branches: Branches | None = None,
    ) -> Tensor:
        """Hidden states [T, hidden_size] behind the last layer, for T tokens from `position` on in slot `sequence`.

        The first stage embeds `tokens`; the others take `hidden` [T, hidden_size] of the shard's dtype and device.
        If given, `taps` gets the hidden states [T, hidden_size] that `observe` asked for, before any norm.
        Attends to positions before the frame's end only, causally, and writes keys and values at the frame's own; or
        does both as `branches` say, of a model without recurrent states.
        Raises `OutOfStep` where the frame does not fit the slot or the stage.
        """
        self.check(position, len(tokens), hidden, branches)
        self.kv.begin(sequence, position, len(tokens) if branches is None else branches.end - position)
        if self._states is None:
            return self._compute(sequence, position, tokens, hidden, None, taps, branches)
        if branches is not None:
            raise OutOfStep("layers with recurrent states take no frames with several drafts at one position")
        chunk = self._states.is_chunk(position, len(tokens))
        if len(tokens) > self._wide:
            states = self._states.frame(sequence, position, len(tokens), chunk=chunk)
            return self._compute(sequence, position, tokens, hidden, states, taps)
        # Part of the frame may be rejected: each of its tokens leaves a state behind.
        rows, tapped = [], []
        for row, token in enumerate(tokens):
            states = self._states.frame(sequence, position + row, 1, chunk=chunk and row + 1 == len(tokens))
            given = None if hidden is None else hidden[row : row + 1]
            own: list[Tensor] = []
            tapped.append(own)
            rows.append(self._compute(sequence, position + row, [token], given, states, own))
        if taps is not None:
            taps.extend(torch.cat(depth) for depth in zip(*tapped, strict=True))
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _compute(
        self,
        sequence: int,
        position: int,
        tokens: Sequence[int],
        hidden: Tensor | None,
        states: FrameStates | None,
        taps: list[Tensor] | None,
        branches: Branches | None = None,
    ) -> Tensor:
        """The layers, over tokens that are computed at once."""
        kv, scratch = self.kv.layers(sequence), self.kv.scratch
        rotations: Sequence[CosSin | None]
        if branches is None:
            frame = FrameContext(kv, position, len(tokens), states, self.device, scratch, self.kv.chunk_masks)
            rotations = self.rotary.at(position, frame.end)
        else:
            frame = TreeContext(kv, branches, self.device, scratch)
            rotations = self.rotary.rows(frame.positions[0])
        state = self.embed(self._to_device(tokens)) if hidden is None else hidden[None]
        for layer, behind in enumerate(self.behind_layers(state, rotations, frame)):
            state = behind
            if taps is not None and layer in self.tapped:
                taps.append(state[0])
        if states is not None:
            states.keep_snapshots()
        return state[0]

    def check(self, position: int, length: int, hidden: Tensor | None, branches: Branches | None = None) -> None:
        """Raises `OutOfStep` where a frame of `length` tokens does not fit the slot, or `hidden` the stage."""
        end = position + length if branches is None else branches.end
        if position < 0 or end > self.kv.max_len:
            raise OutOfStep(f"positions {position}..{end - 1} are outside of a slot of {self.kv.max_len}")
        wanted = None if self.embeds else [length, self.hidden_size]
        if (None if hidden is None else list(hidden.shape)) != wanted:
            raise OutOfStep(f"expected hidden states {wanted}, not {None if hidden is None else list(hidden.shape)}")

    def embed(self, ids: Tensor) -> Tensor:
        """Hidden states [1, T, hidden_size] of token ids [1, T]; first stage only."""
        if self._embedding is None:
            raise OutOfStep("only the first stage has an embedding")
        hidden: Tensor = self._embedding(ids)
        return hidden if self._scales.embeddings == 1.0 else hidden * self._scales.embeddings

    def fused(self, backend: str = "inductor") -> list[DecoderLayer]:
        """The layers with their small operations compiled, for `behind_layers`; see `workers.model.fused`."""
        return [layer.with_module(fused(layer.module, backend)) for layer in self._layers]

    def behind_layers(
        self,
        hidden: Tensor,
        rotary: Sequence[CosSin | None],
        rows: Rows,
        layers: Sequence[DecoderLayer] | None = None,
    ) -> Iterator[Tensor]:
        """Hidden states behind each layer in turn, [1, T, hidden_size] like `hidden`, which comes in.

        `layers` are what the shard's own are to be replaced with.
        """
        for layer, turned in zip(layers or self._layers, rotary, strict=True):
            hidden = layer(hidden, turned, rows)
            yield hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [vocabulary] of the last row of `hidden` [T, hidden_size]; last stage only."""
        return self.row_logits(hidden[-1:])[0]

    @torch.inference_mode()
    def row_logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [T, vocabulary] of all rows of `hidden` [T, hidden_size]; last stage only."""
        if self._norm is None or self._head is None:
            raise OutOfStep("only the last stage has a final norm and an LM head")
        return self._scales.scaled(self._head(self._norm(hidden)).float())

    def _to_device(self, tokens: Sequence[int]) -> Tensor:
        """Token ids [1, T]; from pinned memory, so that the host does not wait for a GPU's copy."""
        ids = torch.tensor([tokens], pin_memory=self.device.type == "cuda")
        return ids.to(self.device, non_blocking=True)


def total_bytes(device: torch.device) -> int:
    """All memory of `device`, whoever has it."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return total
    return host_bytes()


def available_bytes(device: torch.device) -> int:
    """Memory that is free on `device`."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return available_host_bytes()

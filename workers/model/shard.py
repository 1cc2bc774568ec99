"""One stage's share of the target model: decoder layers, with the embedding or the LM head at the ends."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from workers.model.attention import FrameContext
from workers.model.decoder_layer import DecoderLayer
from workers.model.kv_cache import KVSlice
from workers.model.loader import Progress, Target, load_config
from workers.model.rotary import RotaryTables
from workers.shared.errors import ConfigError, OutOfStep
from workers.shared.memory import Need, available_host_bytes, check_fits, host_bytes, kv_bytes_per_position
from workers.shared.model_files.facts import head_dim


class Shard:
    """Computes frames through its layers; holds their weights and their keys and values, and nothing else.

    A token alone in its frame gets the same bits whatever was computed before or after it, and wherever the model is
    split. Not safe for use by several threads.
    """

    def __init__(
        self,
        target: Target,
        kv: KVSlice,
        rotary: RotaryTables,
        *,
        indices: range,
        hidden_size: int,
        softcap: float | None,
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
        self._layers = [DecoderLayer(module) for module in target.layers]
        self._indices = indices
        self._tapped = [False] * len(indices)
        self._embedding = target.embedding
        self._norm = target.norm
        self._head = target.head
        self._softcap = softcap
        self._kv = kv
        self._rotary = rotary

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
        progress: Progress | None = None,
    ) -> "Shard":
        """Reads the layers with global indices `layers` from a prepared model folder and allocates their KV slice.

        `progress(loaded, total)` is called after each tensor. Raises `ConfigError` where the model is not supported,
        the checkpoint is incomplete, or weights and `sequences` slots of `max_len` positions do not fit into memory,
        or where given only `pool` positions, which all slots share. Keys and values are of `dtype` or `kv_dtype`.
        """
        config = load_config(path)
        longest: int = config.max_position_embeddings
        if not 1 <= max_len <= longest:
            raise ConfigError(f"--max-model-len {max_len}: this model has from 1 to {longest} positions")
        target = Target(path, config, layers, first=first, last=last)
        need = Need(
            f"stage with {len(layers)} layers",
            str(device),
            target.weight_bytes(dtype, device),
            kv_bytes_per_position(config.to_dict(), len(layers), (kv_dtype or dtype).itemsize),
            sequences,
            pool,
        )
        check_fits([need], max_len, available_bytes(device))
        target.load(dtype, device, progress)
        kinds: Sequence[str] = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
        kv = KVSlice(
            layers,
            sequences=sequences,
            kv_heads=config.num_key_value_heads,
            max_len=max_len,
            head_dim=head_dim(config.to_dict()),
            dtype=kv_dtype or dtype,
            device=device,
        )
        return cls(
            target,
            kv,
            RotaryTables(
                target.rotary, [kinds[index] for index in layers], max_len=max_len, dtype=dtype, device=device
            ),
            indices=layers,
            hidden_size=config.hidden_size,
            softcap=getattr(config, "final_logit_softcapping", None),
            weight_bytes=need.weight_bytes,
            dtype=dtype,
            device=device,
        )

    def observe(self, anchors: Sequence[int]) -> None:
        """Asks for the hidden states with these indices, as far as this shard has them: k is behind layer k - 1."""
        self._tapped = [index + 1 in anchors for index in self._indices]

    def copy(self, source: int, target: int, positions: int) -> None:
        """The first `positions` of slot `target` are from now on those of slot `source`."""
        self._kv.copy(source, target, positions)

    def release(self, sequence: int, kept: int) -> None:
        """Slot `sequence` needs no memory but for its first `kept` positions until more of it is written."""
        self._kv.release(sequence, kept)

    @torch.inference_mode()
    def forward(
        self,
        sequence: int,
        position: int,
        tokens: Sequence[int],
        hidden: Tensor | None,
        taps: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden states [T, hidden_size] behind the last layer, for T tokens from `position` on in slot `sequence`.

        The first stage embeds `tokens`; the others take `hidden` [T, hidden_size] of the shard's dtype and device.
        If given, `taps` gets the hidden states [T, hidden_size] that `observe` asked for, before any norm.
        Attends to positions before the frame's end only, causally, and writes keys and values at the frame's own.
        Raises `OutOfStep` where the frame does not fit the slot or the stage.
        """
        frame = FrameContext(self._kv.layers(sequence), position, len(tokens))
        if position < 0 or frame.end > self._kv.max_len:
            raise OutOfStep(f"positions {position}..{frame.end - 1} are outside of a slot of {self._kv.max_len}")
        if self._embedding is not None:
            hidden = self._embedding(self._to_device(tokens))
        elif hidden is None or hidden.shape != (len(tokens), self.hidden_size):
            raise OutOfStep(f"expected hidden states [{len(tokens)}, {self.hidden_size}], not {_shape(hidden)}")
        else:
            hidden = hidden[None]
        for layer, rotary, tapped in zip(self._layers, self._rotary.at(position, frame.end), self._tapped, strict=True):
            hidden = layer(hidden, rotary, frame)
            if tapped and taps is not None:
                taps.append(hidden[0])
        return hidden[0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [vocabulary] of the last row of `hidden` [T, hidden_size]; last stage only."""
        return self.row_logits(hidden[-1:])[0]

    @torch.inference_mode()
    def row_logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [T, vocabulary] of all rows of `hidden` [T, hidden_size]; last stage only."""
        if self._norm is None or self._head is None:
            raise OutOfStep("only the last stage has a final norm and an LM head")
        logits: Tensor = self._head(self._norm(hidden)).float()
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def _to_device(self, tokens: Sequence[int]) -> Tensor:
        """Token ids [1, T]; from pinned memory, so that the host does not wait for a GPU's copy."""
        ids = torch.tensor([tokens], pin_memory=self.device.type == "cuda")
        return ids.to(self.device, non_blocking=True)


def _shape(hidden: Tensor | None) -> list[int] | None:
    return None if hidden is None else list(hidden.shape)


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

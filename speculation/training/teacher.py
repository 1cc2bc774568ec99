"""What the frozen target says about each token of an example: its anchors and its next-token distribution."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from speculation.pdm.module import capped
from speculation.training.examples.data import Example
from workers.model.reference import load_reference
from workers.shared.errors import ConfigError

_HEAD_ROWS = 512  # rows of full-vocabulary logits at a time


@dataclass(frozen=True)
class Targets:
    """Per token of some examples, concatenated in order. The next-token distribution is softmax(normed @ head.T),
    capped where the target caps its logits."""

    anchors: Tensor  # [tokens, anchors, H]
    normed: Tensor  # [tokens, H], after the final norm
    log_z: Tensor  # float32 [tokens], logsumexp over the target's whole vocabulary
    best: Tensor  # int64 [tokens], the most likely next token


class Teacher(Protocol):
    """Gives the targets of training examples."""

    def targets(self, indices: Sequence[int]) -> Targets:
        """Targets of the examples `indices`, concatenated."""
        ...


def load_target(folder: Path, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """The whole frozen target, for training and distillation only; raises `ConfigError` where it cannot be loaded."""
    try:
        # The dtype is given here and not to `to`: rotary frequencies must stay in float32.
        model: Any = load_reference(folder, dtype)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{folder}: the target cannot be loaded: {error}") from error
    frozen: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    return frozen


def load_tokenizer(folder: Path) -> Any:
    """The target's tokenizer; raises `ConfigError` where the model folder has none."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: no usable tokenizer: {error}") from error


class LiveTeacher:
    """Runs the target on every call, in one batch padded on the right."""

    def __init__(self, model: PreTrainedModel, anchors: tuple[int, ...], examples: Sequence[Example]) -> None:
        self._model = cast(Any, model)
        self._anchors = anchors
        self._examples = examples
        self._decoder: Any = self._model.get_decoder()
        self._head: Any = self._model.get_output_embeddings()
        self._cap: float | None = getattr(self._model.config, "final_logit_softcapping", None)

    @torch.no_grad()
    def targets(self, indices: Sequence[int]) -> Targets:
        """See `Teacher`."""
        examples = [self._examples[index] for index in indices]
        width = max(map(len, examples))
        ids = torch.zeros(len(examples), width, dtype=torch.int64)
        real = torch.zeros(len(examples), width, dtype=torch.bool)
        for row, example in enumerate(examples):
            ids[row, : len(example)] = torch.tensor(example.tokens)
            real[row, : len(example)] = True
        ids, real = ids.to(self._model.device), real.to(self._model.device)
        hidden = self._hidden_states(ids, real)
        anchors = torch.stack([hidden[anchor] for anchor in self._anchors], dim=1)
        last = hidden[len(self._decoder.layers)]
        normed = self._decoder.norm(last)
        log_z, best = [], []
        for rows in torch.split(normed, _HEAD_ROWS):
            logits = capped(self._head(rows).float(), self._cap)
            log_z.append(logits.logsumexp(-1))
            best.append(logits.argmax(-1))
        return Targets(anchors, normed, torch.cat(log_z), torch.cat(best))

    def _hidden_states(self, ids: Tensor, real: Tensor) -> dict[int, Tensor]:
        """Residual streams `[tokens, H]` by hidden-state index, padding removed.

        Taken from hooks: the library's own tuple of hidden states ends with a normed one.
        """
        found: dict[int, Tensor] = {}

        def keep(index: int) -> Any:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                found[index] = (output[0] if isinstance(output, tuple) else output)[real]

            return hook

        layers = self._decoder.layers
        wanted = {*self._anchors, len(layers)}
        modules = {0: self._decoder.embed_tokens, **{index + 1: layer for index, layer in enumerate(layers)}}
        handles = [modules[index].register_forward_hook(keep(index)) for index in sorted(wanted)]
        try:
            # Causal attention never looks at padding on the right, so no mask is needed.
            self._decoder(input_ids=ids, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return found

"""The head for multi-token prediction that some models carry in their own checkpoint, as `mtp.*` (Qwen3.5, Qwen3-Next).

It reads the last hidden state behind the final norm, has one full-attention layer of the model's own kind, and shares
embedding and LM head with the model. What it feeds back is its normalised output.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from speculation.heads.network import FeatureHead
from speculation.pdm.target import read_head, read_tensor
from speculation.pdm.tower import TowerRotary
from workers.model.attention import Rows
from workers.model.checkpoint import Checkpoint
from workers.model.decoder_layer import DecoderLayer
from workers.model.loader import load_config, meta_model
from workers.model.parameters import sources_of
from workers.model.rotary import CosSin, RotaryTables
from workers.model.shard import Scales
from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import head_dim
from workers.shared.model_files.families import family_of
from workers.shared.model_files.layers import KVShape
from workers.shared.model_files.tensor_sizes import EMBEDDING, FINAL_NORM

PREFIX = "mtp."
_LAYERS = "layers.0."
_FULL = "full_attention"


class MtpHead(FeatureHead):
    """The head of one model; use `read_mtp`."""

    draft_to_target: Tensor

    def __init__(self, config: PreTrainedConfig, whole: Any, layers: int) -> None:
        """`whole` is a model of the family with one full-attention layer, `layers` the target's number of them."""
        super().__init__()
        hidden, vocabulary, said = config.hidden_size, config.vocab_size, config.to_dict()
        base = whole.model
        norm = type(getattr(base, family_of(said).norm))
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        self.anchors = (layers,)
        self.kv_shape = KVShape(kv_heads, head_dim(said), head_dim(said))
        self.layer_count, self.width, self.target_width = 1, hidden, hidden
        self.final_norm, self.norm = norm(hidden, eps=config.rms_norm_eps), norm(hidden, eps=config.rms_norm_eps)
        self.pre_fc_norm_embedding = norm(hidden, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(hidden, eps=config.rms_norm_eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = base.layers[:1]
        self._layer = DecoderLayer(self.layers[0], positioned=family_of(said).positioned)
        self.embed_tokens = nn.Embedding(vocabulary, hidden)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        self._scales = Scales.of(said)
        self._rotary = TowerRotary(type(base.rotary_emb)(config=config), [_FULL])
        self.register_buffer("draft_to_target", torch.arange(vocabulary), persistent=False)

    def features(self, states: Tensor) -> Tensor:
        """See `FeatureHead`."""
        normed: Tensor = self.final_norm(states[:, 0])
        return normed

    def forward(self, tokens: Tensor, features: Tensor, rotary: Sequence[CosSin], rows: Rows) -> Tensor:
        """See `FeatureHead`."""
        embedded = self.embed_tokens(tokens) * self._scales.embeddings
        both = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(features)], dim=-1)
        hidden = self._layer(self.fc(both)[None], rotary[0], rows)
        output: Tensor = self.norm(hidden[0])
        return output

    def logits(self, outputs: Tensor) -> Tensor:
        """See `FeatureHead`."""
        return self._scales.scaled(self.lm_head(outputs).float())

    def fed_back(self, outputs: Tensor) -> Tensor:
        """See `FeatureHead`."""
        return outputs

    def rotary_tables(self, length: int) -> RotaryTables:
        """See `FeatureHead`."""
        return self._rotary.tables(length, self.dtype, self.device)


@torch.no_grad()
def read_mtp(target: Path) -> MtpHead:
    """The head in the model folder `target`, float32 on the CPU.

    Raises `ConfigError` where there is none, or one that is made otherwise.
    """
    checkpoint = Checkpoint(target)
    names = [name.removeprefix(PREFIX) for name in checkpoint.entries if name.startswith(PREFIX)]
    if not names:
        raise ConfigError(
            f"--drafter mtp: {target} holds no tensors mtp.*: this model has no head for multi-token prediction of its "
            f"own; use another drafter"
        )
    if later := sorted(name for name in names if name.startswith("layers.") and not name.startswith(_LAYERS)):
        raise ConfigError(f"{target}: {PREFIX}{later[0]}: heads of several layers, one a step, are not implemented")
    config = load_config(target)
    single = copy.deepcopy(config)
    single.num_hidden_layers = 1
    if getattr(single, "layer_types", None):
        single.layer_types = [_FULL]
    whole = meta_model(single)
    head = MtpHead(single, whole, config.num_hidden_layers)
    _fill(head, whole, checkpoint, names)
    head.final_norm.weight.copy_(read_tensor(target, FINAL_NORM))
    head.embed_tokens.weight.copy_(read_tensor(target, EMBEDDING))
    head.lm_head.weight.copy_(read_head(target))
    return head.eval().requires_grad_(False)


def _fill(head: MtpHead, whole: Any, checkpoint: Checkpoint, names: Sequence[str]) -> None:
    """Loads the head's own tensors, `names`; raises `ConfigError` unless they are exactly those that it has."""
    cpu = torch.device("cpu")

    def load(inner: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        stored = {PREFIX + name.removeprefix("model."): name for name in inner}
        return ((stored[name], tensor) for name, tensor in checkpoint.load(stored, torch.float32, cpu))

    sources = sources_of(whole, [f"model.{name}" for name in names])
    wanted = {f"layers.0.{name}" for name in whole.model.layers[0].state_dict()}
    wanted |= {"fc.weight", "norm.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"}
    found = {name.removeprefix("model.") for name in sources}
    if missing := sorted(wanted - found):
        raise ConfigError(f"{checkpoint.folder}: the checkpoint lacks {PREFIX}{missing[0]}, which its head needs")
    if unknown := sorted(found - wanted):
        raise ConfigError(f"{checkpoint.folder}: {PREFIX}{unknown[0]} is a tensor of a head that is made otherwise")
    head.layers.to_empty(device="cpu")
    state = head.state_dict()
    for name in sorted(wanted):
        source = sources[f"model.{name}"]
        tensor = next(iter(load(source.stored)))[1] if source.converter is None else source.merged(name, load)
        if tensor.shape != state[name].shape:
            raise ConfigError(
                f"{checkpoint.folder}: {PREFIX}{name} is {list(tensor.shape)}, expected {list(state[name].shape)}"
            )
        state[name].copy_(tensor)

"""Builds the part of a Hugging Face model that one stage needs: structure from the config, weights from the files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from workers.model import attention
from workers.model.checkpoint import Checkpoint
from workers.model.linear.choose import has_products, packed_linear
from workers.model.linear.whole import PackedEmbedding
from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import EMBEDDING, HEAD
from workers.shared.packed.rounding import Rounding

Progress = Callable[[int, int], None]  # tensors loaded, of how many


def load_config(folder: Path) -> PreTrainedConfig:
    """The model's configuration; raises `ConfigError` where it cannot be served."""
    check_supported(read_json(folder / "config.json"))
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from error
    return config


@dataclass(frozen=True)
class _Wanted:
    """One module to fill, and where each of its tensors is in the checkpoint."""

    module: nn.Module
    sources: dict[str, str]  # name within the module -> name in the checkpoint


class Target:
    """One stage's modules of the model: on the meta device until `load`, so that sizes are known at no cost."""

    def __init__(
        self,
        folder: Path,
        config: PreTrainedConfig,
        layers: range,
        *,
        first: bool,
        last: bool,
        rounding: Rounding | None = None,
    ) -> None:
        """Takes the decoder layers with global indices `layers`, the embedding if `first`, norm and head if `last`."""
        count: int = config.num_hidden_layers
        if layers.start < 0 or layers.stop > count:
            raise ConfigError(f"layers {layers.start}..{layers.stop - 1}: the model has only layers 0..{count - 1}")
        self._checkpoint = Checkpoint(folder, rounding)
        attention.register()
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME)
        whole.requires_grad_(False)
        whole.eval()
        base = whole.model
        self.layers: list[nn.Module] = [base.layers[index] for index in layers]
        self.embedding: nn.Module | None = base.embed_tokens if first else None
        self.norm: nn.Module | None = base.norm if last else None
        self.head: nn.Module | None = whole.lm_head if last else None
        # Outside of the meta device, and never converted: its frequencies stay float32 whatever the model's dtype.
        self.rotary: nn.Module = type(base.rotary_emb)(config=config)

        # A head of its own wins over the config's word: some checkpoints store a tied one as well.
        shared = config.tie_word_embeddings and HEAD not in self._checkpoint.entries
        head_source = EMBEDDING if shared else HEAD
        self._wanted = [
            _wanted(module, f"model.layers.{index}.") for index, module in zip(layers, self.layers, strict=True)
        ]
        if self.embedding is not None:
            self._wanted.append(_wanted(self.embedding, "model.embed_tokens."))
        if self.norm is not None:
            self._wanted.append(_wanted(self.norm, "model.norm."))
        if self.head is not None:
            self._wanted.append(_Wanted(self.head, {"weight": head_source}))

    def weight_bytes(self, dtype: torch.dtype, device: torch.device) -> int:
        """Bytes of all weights as they are held; a tensor that two modules share counts once."""
        dense: dict[str, int] = {}
        total = 0
        for wanted in self._wanted:
            state = wanted.module.state_dict()
            for name, source in wanted.sources.items():
                if self._stays_packed(source, device):
                    total += self._packed_bytes(wanted.module, source)
                else:
                    dense[source] = state[name].numel() * dtype.itemsize
        return total + sum(dense.values())

    def load(self, dtype: torch.dtype, device: torch.device, progress: Progress | None = None) -> None:
        """Fills the modules; raises `ConfigError` where the checkpoint lacks a tensor or has one of another shape.

        On a CPU packed weights stay packed, in layers of their own; on other devices they are unpacked.
        """
        # Each once, though a tied embedding and head both want the same one.
        sources = list(dict.fromkeys(source for wanted in self._wanted for source in wanted.sources.values()))
        kept = [source for source in sources if self._stays_packed(source, device)]
        loaded: dict[str, Tensor] = {}
        done = 0
        for name, tensor in self._checkpoint.load([name for name in sources if name not in kept], dtype, device):
            loaded[name] = tensor
            done = _report(progress, done, len(sources))
        for wanted in self._wanted:
            for name, source in wanted.sources.items():
                if source in kept:
                    self._replace(wanted, name, loaded, dtype)
                    done = _report(progress, done, len(sources))
        for wanted in self._wanted:
            self._fill(wanted, loaded)
        if isinstance(self.embedding, nn.Embedding):
            _fill_embedding_scale(self.embedding, device)

    def _stays_packed(self, source: str, device: torch.device) -> bool:
        return device.type == "cpu" and source in self._checkpoint.packed

    def _packed_bytes(self, module: nn.Module, source: str) -> int:
        packed = self._checkpoint.packed[source]
        return packed.nbytes if module is self.embedding else packed.held_bytes(products=has_products())

    def _replace(self, wanted: _Wanted, name: str, loaded: dict[str, Tensor], dtype: torch.dtype) -> None:
        """Puts a layer over packed weights in the place of the one that holds the parameter `name`."""
        source = wanted.sources[name]
        packed, parts = self._checkpoint.packed[source], self._checkpoint.parts(source)
        if wanted.module is self.embedding:
            scale = getattr(wanted.module, "scalar_embed_scale", 1.0)
            rows = {part: tensor.clone() for part, tensor in parts.items()}
            self.embedding = PackedEmbedding(packed, rows, dtype, scale)
            return
        owner = name.removesuffix("weight").rstrip(".")
        bias = loaded.get(wanted.sources.get(f"{owner}.bias", ""))
        layer = packed_linear(packed, parts, bias)
        if owner:
            wanted.module.set_submodule(owner, layer)
        else:
            self.head = layer

    def _fill(self, wanted: _Wanted, loaded: dict[str, Tensor]) -> None:
        """Gives the parameters that are left of a module their tensors."""
        left = wanted.module.state_dict()
        tensors = {name: loaded[source] for name, source in wanted.sources.items() if name in left and source in loaded}
        if not tensors:
            return  # all of it was replaced
        try:
            wanted.module.load_state_dict(tensors, assign=True)
        except RuntimeError as error:  # names and shapes; torch has no narrower class for it
            raise ConfigError(f"{self._checkpoint.folder}: {error}") from error


def _report(progress: Progress | None, done: int, total: int) -> int:
    if progress is not None:
        progress(done + 1, total)
    return done + 1


def _wanted(module: nn.Module, prefix: str) -> _Wanted:
    return _Wanted(module, {name: prefix + name for name in module.state_dict()})


def _fill_embedding_scale(embedding: nn.Module, device: torch.device) -> None:
    """Gemma multiplies its embeddings by a constant, which it keeps in a buffer that no checkpoint has."""
    for name, _ in embedding.named_buffers():
        scale = getattr(embedding, "scalar_embed_scale", None)
        if name != "embed_scale" or not isinstance(scale, float):
            raise ConfigError(f"{type(embedding).__name__}: buffer {name} is in no checkpoint, and we do not know it")
        embedding.embed_scale = torch.tensor(scale, dtype=torch.float32, device=device)

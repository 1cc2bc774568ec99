"""Builds the part of a Hugging Face model that one stage needs: structure from the config, weights from the files."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

from workers.model import attention
from workers.model.checkpoint import Checkpoint
from workers.model.linear.choose import has_products, packed_embedding, packed_linear
from workers.model.linear.experts import ExpertMatrix, WholeLinear
from workers.model.parameters import Source, sources_of
from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported
from workers.shared.model_files.families import family_of
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import EMBEDDING, HEAD
from workers.shared.packed.rounding import Rounding

Progress = Callable[[int, int], None]  # bytes of the files read, of how many


def load_config(folder: Path) -> PreTrainedConfig:
    """The model's configuration; raises `ConfigError` where it cannot be served."""
    check_supported(read_json(folder / "config.json"))
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from error
    return config


def said_of(config: PreTrainedConfig) -> dict[str, Any]:
    """A config.json that says everything; the number of layers too, which some families derive."""
    return {**config.to_dict(), "num_hidden_layers": config.num_hidden_layers}


@dataclass(frozen=True)
class _Wanted:
    """One module to fill, and where each of its tensors is in the checkpoint."""

    module: nn.Module
    sources: dict[str, str]  # name within the module -> name in the checkpoint
    merged: dict[str, Source] = field(default_factory=dict)  # the same, where several tensors make up one


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
        self._config = config
        whole = meta_model(config)
        base = whole.model
        self.layers: list[nn.Module] = [base.layers[index] for index in layers]
        self.embedding: nn.Module | None = whole.get_input_embeddings() if first else None
        self.norm: nn.Module | None = getattr(base, family_of(config.to_dict()).norm) if last else None
        self.head: nn.Module | None = whole.lm_head if last else None
        # Outside of the meta device, and never converted: its frequencies stay float32 whatever the model's dtype.
        rotary = getattr(base, "rotary_emb", None) or getattr(base, "pos_emb", None)
        self.rotary: nn.Module | None = None if rotary is None else type(rotary)(config=config)

        sources = sources_of(whole, self._checkpoint.entries)
        # A head of its own wins over the config's word: some checkpoints store a tied one as well.
        if config.tie_word_embeddings and HEAD not in sources:
            sources[HEAD] = sources.get(EMBEDDING, Source({"": [EMBEDDING]}))
        ends = [module for module in (self.embedding, self.norm, self.head) if module is not None]
        self._float32 = _in_float32(whole, sources)
        prefixes = {id(module): name for name, module in whole.named_modules()}
        self._wanted = [_wanted(module, f"{prefixes[id(module)]}.", sources) for module in (*self.layers, *ends)]

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
                    itemsize = 4 if source in self._float32 else dtype.itemsize
                    dense[source] = state[name].numel() * itemsize
            for several in wanted.merged.values():
                total += sum(self._held_bytes(name, dtype, device) for name in several.stored)
        return total + sum(dense.values())

    def load(self, dtype: torch.dtype, device: torch.device, progress: Progress | None = None) -> None:
        """Fills the modules; raises `ConfigError` where the checkpoint lacks a tensor or has one of another shape.

        On a CPU packed weights stay packed, in layers of their own; on other devices they are unpacked.
        """
        # Each once, though a tied embedding and head both want the same one.
        sources = list(dict.fromkeys(source for wanted in self._wanted for source in wanted.sources.values()))
        kept = [source for source in sources if self._stays_packed(source, device)]
        loaded: dict[str, Tensor] = {}
        merged_from = [name for wanted in self._wanted for several in wanted.merged.values() for name in several.stored]
        read = _Read(progress, self._checkpoint, [*sources, *merged_from])
        whole = [name for name in sources if name not in kept]
        for kind, names in (
            (dtype, [name for name in whole if name not in self._float32]),
            (torch.float32, [name for name in whole if name in self._float32]),
        ):
            for name, tensor in self._checkpoint.load(names, kind, device):
                loaded[name] = tensor
                read.add(name)
        for wanted in self._wanted:
            for name, source in wanted.sources.items():
                if source in kept:
                    self._replace(wanted, name, loaded, dtype)
                    read.add(source)
        for wanted in self._wanted:
            merged = {}
            for name, several in wanted.merged.items():
                if any(self._stays_packed(source, device) for source in several.stored):
                    experts = self._experts(name, several, dtype)
                    _put(wanted.module, name, nn.ModuleList(experts))
                else:
                    merged[name] = several.merged(name, lambda names: self._checkpoint.load(names, dtype, device))
                read.add(*several.stored)
            self._fill(wanted, loaded, merged)
        if isinstance(self.embedding, nn.Embedding):
            _fill_embedding_scale(self.embedding, device)
        for layer in self.layers:
            self._compute_buffers(layer, dtype, device)
        self._checkpoint.close()

    def _compute_buffers(self, layer: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        """Gives a layer the constants that no checkpoint has, computed from the configuration by its own family."""
        for name, buffer in layer.named_buffers():
            if not buffer.is_meta:
                continue
            owner, _, leaf = name.rpartition(".")
            family = sys.modules[type(layer).__module__]
            compute = getattr(family, f"compute_{leaf}", None)
            if compute is None:
                raise ConfigError(f"{type(layer).__name__}: buffer {name} is in no checkpoint, and we do not know it")
            setattr(layer.get_submodule(owner), leaf, compute(self._config).to(device, dtype))

    def _held_bytes(self, source: str, dtype: torch.dtype, device: torch.device) -> int:
        """Of what becomes part of a larger parameter, or of a layer that stands for it."""
        if self._stays_packed(source, device):
            return self._checkpoint.packed[source].held_bytes(products=has_products())
        return self._checkpoint.entries[source].elements * dtype.itemsize

    def _stays_packed(self, source: str, device: torch.device) -> bool:
        return device.type == "cpu" and source in self._checkpoint.packed

    def _packed_bytes(self, module: nn.Module, source: str) -> int:
        packed = self._checkpoint.packed[source]
        return packed.nbytes if module is self.embedding else packed.held_bytes(products=has_products())

    def _replace(self, wanted: _Wanted, name: str, loaded: dict[str, Tensor], dtype: torch.dtype) -> None:
        """Puts a layer over packed weights in the place of the one that holds the parameter `name`."""
        source = wanted.sources[name]
        packed, matrices = self._checkpoint.packed[source], self._checkpoint.matrices(source)
        if packed.experts:
            experts = [ExpertMatrix([packed_linear(packed, parts, None)]) for parts in matrices]
            _put(wanted.module, name, nn.ModuleList(experts))
            return
        parts = next(matrices)
        if wanted.module is self.embedding:
            scale = getattr(wanted.module, "scalar_embed_scale", 1.0)
            self.embedding = packed_embedding(packed, parts, dtype, scale)
            return
        owner = name.removesuffix("weight").rstrip(".")
        bias = loaded.get(wanted.sources.get(f"{owner}.bias", ""))
        layer = packed_linear(packed, parts, bias)
        if owner:
            wanted.module.set_submodule(owner, layer)
        else:
            self.head = layer

    def _experts(self, parameter: str, source: Source, dtype: torch.dtype) -> Iterator[ExpertMatrix]:
        """Layers in the place of each expert's matrix, which the checkpoint has in tensors of its own."""
        for names in source.by_expert(parameter):
            layers: list[nn.Module] = []
            for name in names:
                if name in self._checkpoint.packed:
                    (parts,) = self._checkpoint.matrices(name)
                    layers.append(packed_linear(self._checkpoint.packed[name], parts, None))
                else:
                    ((_, weight),) = self._checkpoint.load([name], dtype, torch.device("cpu"))
                    layers.append(WholeLinear(weight))
            yield ExpertMatrix(layers)

    def _fill(self, wanted: _Wanted, loaded: dict[str, Tensor], merged: dict[str, Tensor]) -> None:
        """Gives the parameters that are left of a module their tensors."""
        left = wanted.module.state_dict()
        tensors = {name: loaded[source] for name, source in wanted.sources.items() if name in left and source in loaded}
        tensors |= merged
        if not tensors:
            return  # all of it was replaced
        try:
            wanted.module.load_state_dict(tensors, assign=True)
        except RuntimeError as error:  # names and shapes; torch has no narrower class for it
            raise ConfigError(f"{self._checkpoint.folder}: {error}") from error


def _put(module: nn.Module, parameter: str, experts: nn.Module) -> None:
    """Replaces a parameter of all experts, by name, by modules that stand for the matrix of each."""
    owner, _, leaf = parameter.rpartition(".")
    holder = module.get_submodule(owner)
    delattr(holder, leaf)
    setattr(holder, leaf, experts)


class _Read:
    """How much of the checkpoint was read."""

    def __init__(self, progress: Progress | None, checkpoint: Checkpoint, names: Iterable[str]) -> None:
        self._progress = progress
        self._sizes = {name: checkpoint.entries[name].nbytes for name in names if name in checkpoint.entries}
        self._done = 0

    def add(self, *names: str) -> None:
        """These tensors were read; one that two modules share counts once."""
        self._done += sum(self._sizes.pop(name, 0) for name in names)
        if self._progress is not None:
            self._progress(self._done, self._done + sum(self._sizes.values()))


def meta_model(config: PreTrainedConfig) -> Any:
    """The whole model of a supported configuration, with our attention, on the meta device: shapes and no memory."""
    attention.register()
    with torch.device("meta"):
        # Experts one after the other: a token alone is computed in the same way whatever else is.
        whole = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention.NAME, experts_implementation="eager"
        )
    whole.requires_grad_(False)
    return whole.eval()


def rehearse() -> None:
    """Has transformers do what it does at the first model of a process: a second of imports and tables of names."""
    model = meta_model(LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
    sources_of(model, ())


def _in_float32(model: Any, sources: dict[str, Source]) -> frozenset[str]:
    """Tensors of the checkpoint that the family computes with in float32 whatever the dtype."""
    endings = tuple(f".{name}" for name in model._keep_in_fp32_modules_strict or ())
    return frozenset(
        stored for name, source in sources.items() if endings and name.endswith(endings) for stored in source.stored
    )


def _wanted(module: nn.Module, prefix: str, sources: dict[str, Source]) -> _Wanted:
    """Of a parameter that no tensor makes up, its own name: whoever loads it says that it is missing."""
    wanted = _Wanted(module, {})
    for name in module.state_dict():
        source = sources.get(prefix + name, Source({"": [prefix + name]}))
        if source.converter is None:
            (wanted.sources[name],) = source.stored
        else:
            wanted.merged[name] = source
    return wanted


def _fill_embedding_scale(embedding: nn.Module, device: torch.device) -> None:
    """Gemma multiplies its embeddings by a constant, which it keeps in a buffer that no checkpoint has."""
    for name, _ in embedding.named_buffers():
        scale = getattr(embedding, "scalar_embed_scale", None)
        if name != "embed_scale" or not isinstance(scale, float):
            raise ConfigError(f"{type(embedding).__name__}: buffer {name} is in no checkpoint, and we do not know it")
        embedding.embed_scale = torch.tensor(scale, dtype=torch.float32, device=device)

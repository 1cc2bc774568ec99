"""Whether a checkpoint holds what its family's model is made of, asked of transformers, from headers alone."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from workers.model.loader import load_config, meta_model
from workers.model.parameters import sources_of
from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import EMBEDDING, HEAD
from workers.shared.packed.inventory import read_inventory

# Computed from the configuration; or layers that predict further tokens, which are not computed here.
_IGNORED = (r"rotary_emb\.inv_freq$", r"^mtp\.")


def check_shapes(folder: Path) -> None:
    """Raises `ConfigError` naming a tensor that is missing, of another shape, or not called for."""
    model = meta_model(load_config(folder))
    entries = read_inventory(folder).entries
    state = model.state_dict()
    sources = sources_of(model, entries)

    def empty(names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, torch.empty(entries[name].shape, device="meta")) for name in names)

    for name, parameter in state.items():
        if name not in sources:
            if name == HEAD and model.config.tie_word_embeddings and EMBEDDING in sources:
                continue
            raise ConfigError(f"{folder}: the checkpoint lacks {name}, which its config.json calls for")
        source = sources[name]
        shape = list(entries[source.stored[0]].shape)
        if source.converter is not None:
            shape = list(source.merged(name, empty).shape)
        if shape != list(parameter.shape):
            raise ConfigError(
                f"{folder}: {source.stored[0]} makes {name} {shape}, but config.json calls for {list(parameter.shape)}"
            )
    ignored = [*_IGNORED, *(model._keys_to_ignore_on_load_unexpected or [])]
    for name, source in sources.items():
        if name not in state and not any(re.search(pattern, source.stored[0]) for pattern in ignored):
            raise ConfigError(f"{folder}: {source.stored[0]} is a tensor that config.json does not call for")

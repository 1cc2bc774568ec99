"""Which tensors of a checkpoint each parameter of a model is made of: the same one, one of another name, or several.

Checkpoints of one family differ: experts lie one by one or stacked, and prefixes come and go. transformers knows these
layouts; this is the only file that knows how it says so.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import EMBEDDING

Load = Callable[[Iterable[str]], Iterable[tuple[str, Tensor]]]


@dataclass(frozen=True)
class Source:
    """One parameter's tensors: a single one as it is, or several that `converter` merges, by its source patterns."""

    names: dict[str, list[str]]
    converter: Any = None

    @property
    def stored(self) -> list[str]:
        """Every tensor's name in the checkpoint."""
        return [name for group in self.names.values() for name in group]

    def by_expert(self, parameter: str) -> list[tuple[str, ...]]:
        """For each expert the tensors whose rows make up its matrix, in order.

        Raises `ConfigError` where this version of transformers puts tensors together in a way that we do not know.
        """
        match self.converter.operations:
            case [MergeModulelist(dim=0)] | [MergeModulelist(dim=0), Concatenate(dim=1)]:
                return list(zip(*(self.names[pattern] for pattern in self.converter.source_patterns), strict=True))
        raise ConfigError(f"{parameter}: its experts are stored in a way that cannot stay packed")

    def merged(self, parameter: str, load: Load) -> Tensor:
        """The parameter; `load` yields named tensors. Raises `ConfigError` where they do not fit together."""
        loaded = dict(load(self.stored))
        tensors: dict[str, Any] = {
            pattern: [loaded.pop(name) for name in group] for pattern, group in self.names.items()
        }
        patterns = {
            "source_patterns": self.converter.source_patterns,
            "target_patterns": self.converter.target_patterns,
        }
        try:
            for operation in self.converter.operations:
                tensors = operation.convert(tensors, **patterns, full_layer_name=parameter)
        except (RuntimeError, ValueError) as error:  # torch has no narrower class for shapes
            raise ConfigError(f"{parameter}: its tensors in the checkpoint do not fit together: {error}") from error
        (merged,) = tensors.values()
        result: Tensor = merged
        return result


def sources_of(model: PreTrainedModel, stored: Iterable[str]) -> dict[str, Source]:
    """For each parameter and buffer of `model` that the checkpoint's tensors `stored` make up, which of them do.

    What belongs to no parameter is listed under its own name.
    """
    embeddings = model.get_input_embeddings()
    (embedding,) = (name for name, module in model.named_modules() if module is embeddings)
    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    state = model.state_dict()
    found: dict[str, Source] = {}
    groups: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for name in sorted(stored, key=dot_natural_key):
        if name in state or name == EMBEDDING:
            found[f"{embedding}.weight" if name == EMBEDDING else name] = Source({"": [name]})
            continue
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if pattern is None:
            found[target] = Source({"": [name]})
        else:
            groups[target].setdefault(pattern, []).append(name)
    for target, names in groups.items():
        found[target] = Source(names, by_pattern[next(iter(names))])
    return found

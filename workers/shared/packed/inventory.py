"""What weights a model folder holds, packed or not, each under the name that the model has for it; torch-free."""

from pathlib import Path
from typing import NamedTuple

from workers.shared.errors import ConfigError
from workers.shared.model_files.blocks import BITS, BLOCKS, GROUP, packed_kinds
from workers.shared.model_files.families import FAMILIES
from workers.shared.model_files.json_file import read_optional_json
from workers.shared.model_files.tensor_sizes import EMBEDDING, TensorEntry, tensor_entries
from workers.shared.packed.rounding import Rounding
from workers.shared.packed.schemes import UNUSED_PARTS, finder
from workers.shared.packed.weight import PackedWeight


class Inventory(NamedTuple):
    """Weights by name."""

    entries: dict[str, TensorEntry]  # of a packed one the kind as dtype, and the shape that it has unpacked
    packed: dict[str, PackedWeight]  # those that stay packed on a CPU, or are rounded when they are loaded
    tensors: dict[str, TensorEntry]  # what the files hold, parts of packed weights among it

    def stored(self, name: str) -> str:
        """The name in the file of a weight, or of its first part."""
        return next(iter(self.packed[name].parts.values())) if name in self.packed else name


def read_inventory(folder: Path, rounding: Rounding | None = None) -> Inventory:
    """The weights of a model folder, from headers alone; raises `ConfigError` naming what is not read."""
    config = read_optional_json(folder / "config.json")
    tensors = tensor_entries(folder)
    entries = dict(tensors)
    find = finder(config)
    packed = {name: _blocks(name, kind, entries) for name, kind in packed_kinds(config).items() if name in entries}
    if find is not None:
        try:
            packed |= find(entries, config["quantization_config"])
        except ConfigError as error:
            raise ConfigError(f"{folder}: {error}") from error
        entries = {name: entry for name, entry in entries.items() if not name.endswith(UNUSED_PARTS)}
    if EMBEDDING in packed and len(packed[EMBEDDING].parts) > 1:
        raise ConfigError(f"{folder}: {EMBEDDING} is quantised; of embeddings only those of GGUF files may be")
    for weight in packed.values():
        for part in weight.parts.values():
            entries.pop(part, None)
    entries |= {
        name: TensorEntry(weight.kind, weight.unpacked_shape, (0, weight.nbytes)) for name, weight in packed.items()
    }
    if rounding is not None:
        family = FAMILIES.get(config.get("model_type", ""))
        packed = rounding.of(entries, by_column=family is not None and family.by_column) | packed
    return Inventory(entries, packed, tensors)


def _blocks(name: str, kind: str, entries: dict[str, TensorEntry]) -> PackedWeight:
    entry, block = entries[name], BLOCKS[kind]
    if entry.dtype != "U8" or len(entry.shape) != 2 or entry.shape[1] % block.nbytes:
        raise ConfigError(f"{name} is {entry.dtype}{list(entry.shape)}, which are no rows of {kind} blocks")
    rows, columns = entry.shape[0], entry.shape[1] // block.nbytes * block.weights
    group = GROUP if kind in BITS else 0
    return PackedWeight(kind, "gguf", (rows, columns), {"blocks": name}, entry.nbytes, BITS.get(kind, 0), group)

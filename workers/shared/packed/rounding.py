"""Which weights of a checkpoint are rounded to fewer bits when they are loaded (`--quantization`); torch-free."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from workers.shared.model_files.tensor_sizes import EMBEDDING, HEAD, TensorEntry
from workers.shared.packed.weight import PRODUCT_GROUPS, PackedWeight

QuantizationName = Literal["int8", "int4"]
GroupSize = Literal[32, 64, 128]

_FLOATS = ("F64", "F32", "F16", "BF16")
# Projections of attention and of the layers behind it. Not experts and their routers, and nothing with a state.
_PROJECTION = re.compile(
    r"model\.layers\.\d+\.(self_attn|mlp(\.shared_expert)?)\.([qkvo]|qkv|gate|up|down|gate_up)_proj\.weight"
)


class Rounding(NamedTuple):
    """To how many bits, and how many columns share a scale of four bits (of eight, a row does)."""

    name: QuantizationName
    group: int

    def of(self, entries: Mapping[str, TensorEntry]) -> dict[str, PackedWeight]:
        """Of a checkpoint's weights those that are rounded, by name.

        Embeddings, norms and what is packed already stay as they are. The head, which a near-tie hangs on, is never
        rounded to fewer than 8 bits; where it is tied to the embedding, that name stands for the head.
        """
        found = {}
        head = HEAD if HEAD in entries else EMBEDDING
        for name, entry in entries.items():
            if name != head and not _PROJECTION.fullmatch(name):
                continue
            if entry.dtype in _FLOATS and len(entry.shape) == 2 and entry.shape[1] % PRODUCT_GROUPS[-1] == 0:
                found[name] = self._weight(name, entry, 8 if name == head else int(self.name.removeprefix("int")))
        return found

    def _weight(self, name: str, entry: TensorEntry, bits: int) -> PackedWeight:
        rows, columns = entry.shape
        group = next(size for size in PRODUCT_GROUPS if size <= self.group and columns % size == 0)
        return PackedWeight(
            f"int{bits}",
            "whole",
            (rows, columns),
            {"weight": name},
            entry.nbytes,
            bits,
            columns if bits == 8 else group,
            signed=bits == 8,
        )

"""Which weights of a checkpoint are rounded to fewer bits when they are loaded (`--quantization`); torch-free."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from workers.shared.model_files.tensor_sizes import EMBEDDING, EXPERTS, HEAD, TensorEntry, layer_of
from workers.shared.packed.weight import PRODUCT_GROUPS, PackedWeight

QuantizationName = Literal["int8", "int4"]
GroupSize = Literal[32, 64, 128]

_FLOATS = ("F64", "F32", "F16", "BF16")
# Projections of attention and of the layers behind it. Not routers, and nothing with a state.
_PROJECTION = re.compile(
    r"model\.layers\.\d+\.(self_attn|mlp(\.shared_experts?)?)\.([qkvo]|qkv|gate|up|down|gate_up)_proj\.weight"
)


class Rounding(NamedTuple):
    """To how many bits, and how many columns share a scale of four bits (of eight, a row does)."""

    name: QuantizationName
    group: int

    def of(self, entries: Mapping[str, TensorEntry], *, by_column: bool = False) -> dict[str, PackedWeight]:
        """Of a checkpoint's weights those that are rounded, by name; `by_column` as in a family's row.

        Embeddings, norms and what is packed already stay as they are. The head, which a near-tie hangs on, is never
        rounded to fewer than 8 bits; where it is tied to the embedding, that name stands for the head.
        """
        found = {}
        head = HEAD if HEAD in entries else EMBEDDING
        for name, entry in entries.items():
            expert = layer_of(name) is not None and EXPERTS.search(name) and not name.endswith("bias")
            if not (name == head or expert or _PROJECTION.fullmatch(name)):
                continue
            if entry.dtype not in _FLOATS or len(entry.shape) not in (2, 3):
                continue
            *experts, rows, columns = entry.shape  # of all experts together or of one matrix
            turned = by_column and bool(experts)
            if turned:
                rows, columns = columns, rows
            if columns % PRODUCT_GROUPS[-1] == 0:
                bits = 8 if name == head else int(self.name.removeprefix("int"))
                weight = self._weight(name, (rows, columns), entry.nbytes, bits)
                found[name] = msgspec.structs.replace(weight, experts=sum(experts), by_column=turned)
        return found

    def _weight(self, name: str, shape: tuple[int, int], nbytes: int, bits: int) -> PackedWeight:
        columns = shape[1]
        group = next(size for size in PRODUCT_GROUPS if size <= self.group and columns % size == 0)
        return PackedWeight(
            f"int{bits}",
            "whole",
            shape,
            {"weight": name},
            nbytes,
            bits,
            columns if bits == 8 else group,
            signed=bits == 8,
        )

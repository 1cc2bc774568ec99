"""AWQ and GPTQ checkpoints: integers of 4 or 8 bits in 32-bit words, a row of tensors for each column; torch-free.

Both store the transposed matrix. A module M has M.qweight, M.scales [groups, rows] and M.qzeros [groups, words], where
AWQ packs along the rows of the weights and GPTQ along their columns; GPTQ adds M.g_idx [columns], the group of each
column. AutoRound writes either. A module without them keeps its M.weight.
"""

from collections.abc import Mapping
from typing import Any

from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import TensorEntry
from workers.shared.packed.entries import Entries, shaped
from workers.shared.packed.weight import PackedWeight

_WORD = 32  # bits


def find_awq(entries: Entries, scheme: Mapping[str, Any]) -> dict[str, PackedWeight]:
    """The packed weights by name; raises `ConfigError` naming a tensor that is missing or misshapen."""
    found = {}
    for module, words in _modules(entries):
        columns, packed = words.shape
        rows = packed * _WORD // 4
        groups = shaped(entries, f"{module}.scales", (None, rows))[0]
        shaped(entries, f"{module}.qzeros", (groups, packed))
        parts = {"words": f"{module}.qweight", "zeros": f"{module}.qzeros", "scales": f"{module}.scales"}
        found[f"{module}.weight"] = _weight("awq", (rows, columns), 4, groups, parts, entries)
    return found


def find_gptq(entries: Entries, scheme: Mapping[str, Any]) -> dict[str, PackedWeight]:
    """As `find_awq`. The width of a module's integers follows from its shapes, so modules may differ."""
    found = {}
    version = "zeros" if scheme.get("checkpoint_format") == "gptq_v2" else "zeros less one"
    for module, words in _modules(entries):
        packed, rows = words.shape
        order = entries.get(f"{module}.g_idx")
        columns = order.shape[0] if order is not None else packed * _WORD // int(scheme["bits"])
        bits = packed * _WORD // columns
        if bits not in (2, 4, 8) or bits * columns != packed * _WORD:
            raise ConfigError(f"{module}.qweight has {bits} bits a weight; of GPTQ layouts 2, 4 and 8 are read")
        groups = shaped(entries, f"{module}.scales", (None, rows))[0]
        shaped(entries, f"{module}.qzeros", (groups, rows * bits // _WORD))
        parts = {"words": f"{module}.qweight", version: f"{module}.qzeros", "scales": f"{module}.scales"}
        ordered = order is not None and bool(scheme.get("desc_act"))
        if order is not None:
            parts["order"] = f"{module}.g_idx"
        found[f"{module}.weight"] = _weight("gptq", (rows, columns), bits, groups, parts, entries, ordered=ordered)
    return found


def _modules(entries: Entries) -> list[tuple[str, TensorEntry]]:
    return [(name.removesuffix(".qweight"), entry) for name, entry in entries.items() if name.endswith(".qweight")]


def _weight(
    layout: Any,
    shape: tuple[int, int],
    bits: int,
    groups: int,
    parts: Mapping[str, str],
    entries: Entries,
    *,
    ordered: bool = False,
) -> PackedWeight:
    columns = shape[1]
    if groups == 0 or columns % groups:
        raise ConfigError(f"{parts['scales']}: {columns} columns cannot be cut into {groups} groups")
    nbytes = sum(entries[name].nbytes for name in parts.values())
    group = columns // groups
    return PackedWeight(f"{layout} int{bits}", layout, shape, parts, nbytes, bits, group, ordered=ordered)

"""Checkpoints of compressed-tensors, and FP8 ones: weights keep the place of what they replace; torch-free.

A module M has M.weight in 8-bit integers or floats, or M.weight_packed, and M.weight_scale (M.weight_scale_inv in some
FP8 files: it, too, is what values are multiplied by). What describes how rows are rounded before they are multiplied
is not applied: rows keep at least 16 bits here.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from workers.shared.errors import ConfigError
from workers.shared.packed.entries import Entries, shaped
from workers.shared.packed.weight import Layout, PackedWeight

_WORD = 32  # bits
_FP4_GROUPS = {"F8_E4M3": 16, "U8": 32}  # dtype of the scales -> columns that share one: NVFP4, MXFP4
_MXFP4_BLOCKS = "_blocks"
_SCALES = ("weight_scale", "weight_scale_inv")


def find_compressed(entries: Entries, scheme: Mapping[str, Any]) -> dict[str, PackedWeight]:
    """The packed weights by name; raises `ConfigError` naming a tensor that is missing, misshapen or not read."""
    found = {}
    for name, entry in entries.items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed" and entry.dtype == "I32":
            found[f"{module}.weight"] = _packed_integers(module, entries, _bits(module, scheme))
        elif part == "weight_packed":
            found[f"{module}.weight"] = _fp4(module, entries)
        elif part == "weight" and entry.dtype == "I8":
            found[name] = _integers(module, entries)
        elif part == "weight" and entry.dtype == "F8_E4M3":
            found[name] = _fp8(module, entries, _block(module, scheme))
    return found


def find_mxfp4(entries: Entries, scheme: Mapping[str, Any]) -> dict[str, PackedWeight]:
    """As `find_compressed`, for experts that are stored as gpt-oss's are, and which the model has by column.

    A parameter P is P_blocks, uint8 [experts, rows, blocks, 16], two numbers a byte, and P_scales, the exponents of
    each block, uint8 [experts, rows, blocks] (OCP Microscaling Formats, 1.0).
    """
    found = {}
    for name in entries:
        if not name.endswith(_MXFP4_BLOCKS):
            continue
        parameter = name.removesuffix(_MXFP4_BLOCKS)
        experts, rows, blocks, _ = shaped(entries, name, (None, None, None, 16))
        parts = {"values": name, "scales": f"{parameter}_scales"}
        shaped(entries, parts["scales"], (experts, rows, blocks))
        found[parameter] = PackedWeight(
            "mxfp4",
            "fp4",
            (rows, 32 * blocks),
            parts,
            _nbytes(entries, parts),
            bits=5,
            group=32,
            experts=experts,
            by_column=True,
        )
    return found


def _packed_integers(module: str, entries: Entries, bits: int) -> PackedWeight:
    rows, words = shaped(entries, f"{module}.weight_packed", (None, None))
    columns = words * _WORD // bits
    groups = _groups(module, entries, rows, columns)
    parts = {"words": f"{module}.weight_packed", "scales": f"{module}.weight_scale"}
    if f"{module}.weight_zero_point" in entries:
        parts["zeros"] = f"{module}.weight_zero_point"
        shaped(entries, parts["zeros"], (math.ceil(rows * bits / _WORD), groups))
    if ordered := f"{module}.weight_g_idx" in entries:
        parts["order"] = f"{module}.weight_g_idx"
        shaped(entries, parts["order"], (columns,))
    return PackedWeight(
        f"int{bits}",
        "pack-quantized",
        (rows, columns),
        parts,
        _nbytes(entries, parts),
        bits,
        columns // groups,
        signed=bits == 8 and "zeros" not in parts,
        ordered=ordered,
    )


def _integers(module: str, entries: Entries) -> PackedWeight:
    rows, columns = shaped(entries, f"{module}.weight", (None, None))
    groups = _groups(module, entries, rows, columns)
    parts = {"values": f"{module}.weight", "scales": f"{module}.weight_scale"}
    if f"{module}.weight_zero_point" in entries:
        parts["zeros"] = f"{module}.weight_zero_point"
    signed, nbytes = "zeros" not in parts, _nbytes(entries, parts)
    return PackedWeight("int8", "int8", (rows, columns), parts, nbytes, 8, columns // groups, signed=signed)


def _fp8(module: str, entries: Entries, block: tuple[int, int] | None) -> PackedWeight:
    rows, columns = shaped(entries, f"{module}.weight", (None, None))
    scales = next((f"{module}.{part}" for part in _SCALES if f"{module}.{part}" in entries), f"{module}.{_SCALES[0]}")
    if block is not None:
        shaped(entries, scales, (math.ceil(rows / block[0]), math.ceil(columns / block[1])))
    elif scales not in entries or entries[scales].elements not in (1, rows):
        shaped(entries, scales, (rows, 1))
    parts = {"values": f"{module}.weight", "scales": scales}
    kind = "fp8" if block is None else f"fp8 in blocks of {block[0]} x {block[1]}"
    return PackedWeight(kind, "fp8", (rows, columns), parts, _nbytes(entries, parts), block=block or (0, 0))


def _fp4(module: str, entries: Entries) -> PackedWeight:
    rows, halves = shaped(entries, f"{module}.weight_packed", (None, None))
    scales = f"{module}.weight_scale"
    shaped(entries, scales, (rows, None))
    group = _FP4_GROUPS.get(entries[scales].dtype)
    if entries[f"{module}.weight_packed"].dtype != "U8" or group is None:
        raise ConfigError(f"{scales} is {entries[scales].dtype}; of four-bit floats NVFP4 and MXFP4 are read")
    shaped(entries, scales, (rows, halves * 2 // group))
    parts = {"values": f"{module}.weight_packed", "scales": scales}
    layout: Layout = "fp4"
    if group == 16:
        parts["divisor"] = f"{module}.weight_global_scale"
        shaped(entries, parts["divisor"], (1,))
        return PackedWeight("nvfp4", layout, (rows, 2 * halves), parts, _nbytes(entries, parts))
    # Twice such a value is an integer from -12 to 12.
    return PackedWeight("mxfp4", layout, (rows, 2 * halves), parts, _nbytes(entries, parts), bits=5, group=group)


def _groups(module: str, entries: Entries, rows: int, columns: int) -> int:
    """How many groups of columns have a scale."""
    name = f"{module}.weight_scale"
    if name in entries and entries[name].elements == 1:
        return 1  # one for all
    groups = shaped(entries, name, (rows, None))[1]
    if groups == 0 or columns % groups:
        raise ConfigError(f"{name}: {columns} columns cannot be cut into {groups} groups")
    return groups


def _nbytes(entries: Entries, parts: Mapping[str, str]) -> int:
    return sum(entries[name].nbytes for name in parts.values())


def _bits(module: str, scheme: Mapping[str, Any]) -> int:
    bits = int(_weights(module, scheme).get("num_bits", 4))
    if bits not in (2, 4, 8):
        raise ConfigError(f"{module}.weight_packed has {bits} bits a weight; 2, 4 and 8 are read")
    return bits


def _block(module: str, scheme: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns that share a scale."""
    block = scheme.get("weight_block_size") or _weights(module, scheme).get("block_structure")
    return None if not block else (int(block[0]), int(block[1]))


def _weights(module: str, scheme: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the scheme says of a module's weights: the group whose targets name it, or its class, or match it."""
    groups: Iterable[Mapping[str, Any]] = (scheme.get("config_groups") or {}).values()
    by_class: Mapping[str, Any] = {}
    for group in groups:
        weights = group.get("weights") or {}
        for target in group.get("targets") or ["Linear"]:
            if target == module or (target.startswith("re:") and re.match(target[3:], module)):
                return weights
            if target == "Linear":
                by_class = weights
    return by_class

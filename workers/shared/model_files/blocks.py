"""GGUF blocks in a prepared model folder; torch-free.

Such a tensor is stored as bytes, [rows, bytes a row], in the blocks that GGUF defines. `packed_tensors` in config.json
names the kind of each.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from workers.shared.errors import ConfigError

FIELD = "packed_tensors"
GROUP = 32  # weights of a row that share scale and offset
# Kinds of block that are such groups, and their bits a weight. (Q6_K is not: its groups are of 16.)
BITS: Mapping[str, int] = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5, "Q8_0": 8}


class Block(NamedTuple):
    """So many weights of a row, next to each other, in so many bytes."""

    weights: int
    nbytes: int


BLOCKS: Mapping[str, Block] = {
    "Q4_0": Block(32, 18),
    "Q4_1": Block(32, 20),
    "Q5_0": Block(32, 22),
    "Q5_1": Block(32, 24),
    "Q8_0": Block(32, 34),
    "Q4_K": Block(256, 144),
    "Q5_K": Block(256, 176),
    "Q6_K": Block(256, 210),
}


def packed_kinds(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Kinds of block by tensor name, empty for most models; raises `ConfigError` naming one that is not known."""
    kinds: Mapping[str, str] = config.get(FIELD) or {}
    for name, kind in kinds.items():
        if kind not in BLOCKS:
            raise ConfigError(f"config.json: {FIELD}: {name} has blocks of kind {kind}; known are {', '.join(BLOCKS)}")
    return kinds


def packed_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and bytes a row of weights `shape` [rows, columns] in blocks of `kind`."""
    rows, columns = shape
    block = BLOCKS[kind]
    if columns % block.weights:
        raise ConfigError(f"{columns} columns cannot be cut into blocks of kind {kind}, {block.weights} weights each")
    return rows, columns // block.weights * block.nbytes

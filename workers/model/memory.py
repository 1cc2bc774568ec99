"""Whether a stage's weights and KV slices fit into memory, decided before anything is allocated."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import head_dim

_RESERVE = 0.05  # of what is free: activations, the sampler's work space, the allocator's rounding
_GIB = 1 << 30


class StageMemory(msgspec.Struct, frozen=True):
    """What one stage allocates, in bytes."""

    weight_bytes: int
    kv_bytes_per_position: int  # keys and values of all its layers, all slots

    def total(self, max_len: int) -> int:
        """Bytes with room for `max_len` positions a slot."""
        return self.weight_bytes + self.kv_bytes_per_position * max_len

    def longest(self, available: int) -> int:
        """The most positions a slot for which this fits into `available` bytes; 0 where the weights alone do not."""
        room = available - self.weight_bytes
        if room <= 0 or self.kv_bytes_per_position == 0:
            return 0
        return room // self.kv_bytes_per_position


def kv_bytes_per_position(config: Mapping[str, Any], layers: int, sequences: int, itemsize: int) -> int:
    """Bytes of keys and values a position, for `layers` layers and `sequences` slots, from a config.json."""
    kv_heads: int = config.get("num_key_value_heads") or config["num_attention_heads"]
    return 2 * layers * sequences * kv_heads * head_dim(config) * itemsize


def check_fits(need: StageMemory, max_len: int, available: int, where: str) -> None:
    """Raises `ConfigError` naming `--max-model-len` and what would fit, where `need` exceeds `available` bytes."""
    usable = int(available * (1 - _RESERVE))
    if need.total(max_len) <= usable:
        return
    longest = need.longest(usable)
    mend = f"use --max-model-len {longest} or less" if longest else "the weights alone do not fit: use more stages"
    raise ConfigError(
        f"--max-model-len {max_len}: {where} needs {need.total(max_len) / _GIB:.2f} GiB "
        f"({need.weight_bytes / _GIB:.2f} GiB of weights) and {usable / _GIB:.2f} GiB are free; {mend}"
    )


def available_host_bytes() -> int:
    """Memory this host can still hand out, page cache included where the kernel says so."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""What an engine allocates, device by device, known from file headers before anything is loaded."""

import os
import platform
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import psutil
import pynvml

from workers.shared.config import EngineConfig
from workers.shared.drafters import DRAFTERS
from workers.shared.errors import ConfigError
from workers.shared.model_files.draft_heads import head_size, own_head_size
from workers.shared.model_files.facts import head_dim
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.layers import (
    has_states,
    kv_bytes_per_position,
    state_bytes,
    window_bytes_per_position,
)
from workers.shared.model_files.tensor_sizes import EMBEDDING, HEAD, layer_of, tensor_entries
from workers.shared.model_files.windows import window_rule
from workers.shared.packed.inventory import Inventory, read_inventory

_RESERVE = 0.05  # of what is free: activations, the sampler's work space, the allocator's rounding
_GIB = 1 << 30
_CUDA = "cuda:"
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1}


class Need(msgspec.Struct, frozen=True):
    """What one part of an engine allocates on one device of one host."""

    who: str
    device: str
    weight_bytes: int
    kv_bytes_per_position: int  # keys and values of all its layers
    slots: int = 1
    pool: int = 0  # positions that all slots share; 0: each has as many as the longest sequence
    host: str = ""  # where parts run on several
    scratch: int = 0  # rows of a slot beside those of its positions
    window_bytes: int = 0  # of those of a position, what layers have that hold no more than `window_most` a slot
    window_most: int = 0

    def kv_bytes(self, max_len: int) -> int:
        """Bytes of keys and values, where a sequence may have `max_len` positions."""
        positions, scratch = self.pool or self.slots * max_len, self.slots * self.scratch
        windows = self.window_bytes * (min(positions, self.slots * self.window_most) + scratch)
        return (self.kv_bytes_per_position - self.window_bytes) * (positions + scratch) + windows

    def total(self, max_len: int) -> int:
        """Bytes with those of the weights."""
        return self.weight_bytes + self.kv_bytes(max_len)


def needs_of(config: EngineConfig) -> list[Need]:
    """What each stage needs, and the drafter; raises `ConfigError` for a model folder that cannot be read."""
    endpoints = config.endpoints
    needs = [] if config.hollow_stages else stage_needs(config)
    drafter, row = config.drafter, DRAFTERS[config.drafter.name]
    if row.reads_verified:
        needs.append(head_need(config))
    elif drafter.draft_model is not None:
        needs.append(_whole_need("draft model", Path(drafter.draft_model), config, drafter.device, config.scratch))
    for number, model in enumerate(drafter.cascade):
        device = drafter.cascade_device(number)
        needs.append(_whole_need(f"cascade model {number}", Path(model), config, device))
    if drafter.module is not None:
        weights, kv = module_bytes(Path(drafter.module), config)
        needs.append(Need("draft module", drafter.device, weights, kv, config.max_num_seqs, 0, host_of(endpoints.bus)))
    return needs


def _whole_need(who: str, folder: Path, config: EngineConfig, device: str, scratch: int = 0) -> Need:
    """What a small model needs, of which one process holds all layers."""
    layers, held = int(read_json(folder / "config.json")["num_hidden_layers"]), read_inventory(folder)
    weights, kv = model_bytes(folder, held, range(layers), config, device, first=True, last=True)
    return Need(who, device, weights, kv, config.max_num_seqs, 0, host_of(config.endpoints.bus), scratch)


def head_need(config: EngineConfig) -> Need:
    """What a draft head needs, one of its own folder or the target's own; raises `ConfigError` where there is none.

    A slot keeps the head's keys and values, and the hidden states that were tapped.
    """
    drafter, target = config.drafter, Path(config.model)
    size = own_head_size(target) if drafter.draft_model is None else head_size(Path(drafter.draft_model), target)
    item, host = _ITEM_BYTES[config.dtype], host_of(config.endpoints.bus)
    weights, kv = size.weights * item, size.per_position * item
    return Need("draft head", drafter.device, weights, kv, config.max_num_seqs, 0, host, config.scratch)


class _Module(msgspec.Struct):
    """The part of a draft module's config.json that sizes depend on."""

    anchors: list[int]
    layers: int
    head: str = "own"
    frozen_layers: list[int] = []
    draft_token_ids: list[int] | None = None


def module_bytes(path: Path, config: EngineConfig) -> tuple[int, int]:
    """Bytes of a draft module's weights, what it borrows from the target included, and of a position.

    A slot keeps the module's keys and values and the hidden states that were tapped. Of the authors' files, which say
    what they hold only when they are read, the weights alone count. Raises `ConfigError` where there is no module.
    """
    target, drafter = read_inventory(Path(config.model)).entries, config.drafter
    item = 4 if drafter.device == "cpu" else _ITEM_BYTES[config.dtype]  # float32, as it is loaded; no more is kept
    embedding = target[EMBEDDING]
    if not path.exists():
        raise ConfigError(f"--draft-module {path}: no such folder or .pt file")
    if not path.is_dir():
        return path.stat().st_size // 2 * item + embedding.elements * item, 0
    try:
        module = msgspec.convert(read_json(path / "config.json"), _Module)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path / 'config.json'}: {error}; --draft-module takes a draft module folder") from error
    elements = embedding.elements + sum(entry.elements for entry in tensor_entries(path).values())
    elements += sum(entry.elements for name, entry in target.items() if layer_of(name) in module.frozen_layers)
    vocabulary, hidden = embedding.shape
    if module.head == "target":
        elements += hidden * (vocabulary if module.draft_token_ids is None else len(module.draft_token_ids))
    said = read_json(Path(config.model) / "config.json")
    kv_heads = said.get("num_key_value_heads") or said["num_attention_heads"]
    kv = 2 * module.layers * kv_heads * head_dim(said) * item
    return elements * item, kv + len(module.anchors) * hidden * item


def stage_needs(config: EngineConfig) -> list[Need]:
    """What each stage needs; raises `ConfigError` where its layers cannot do what is asked of them."""
    folder = Path(config.model)
    held, said, rule = read_inventory(folder, config.rounding), read_json(folder / "config.json"), window_rule(config)
    if config.breadth > 1 and has_states(said):
        raise ConfigError(
            f"--tree-width {config.tree_width}: this model has layers that remember one text, and not the branches of "
            f"several; leave it out"
        )
    item = _ITEM_BYTES[config.dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype]

    def need(stage: int) -> Need:
        layers, device, last = config.layers(stage), config.device(stage), stage == config.stages - 1
        weights, _ = model_bytes(folder, held, layers, config, device, first=stage == 0, last=last)
        return Need(
            f"stage {stage}",
            device,
            weights,
            kv_bytes_per_position(said, layers, 1, item),
            config.max_num_seqs,
            config.max_total_tokens,
            host_of(config.endpoints.data[stage]),
            config.scratch,
            0 if rule is None else window_bytes_per_position(said, layers, item),
            0 if rule is None else rule.most,
        )

    return [need(stage) for stage in range(config.stages)]


def neighbours(config: EngineConfig, stage: int) -> list[Need]:
    """What all stages need that share the device of this one."""
    needs = stage_needs(config)
    mine = needs[stage]
    return [need for need in needs if (need.host, need.device) == (mine.host, mine.device)]


def model_bytes(
    folder: Path, weights: Inventory, layers: range, config: EngineConfig, device: str, *, first: bool, last: bool
) -> tuple[int, int]:
    """Bytes of some layers' weights, with the embedding or norm and head, and of their KV a position.

    `weights` are those of the model in `folder`. What a slot holds however long its sequence is, recurrent states,
    counts with the weights.
    """
    item = _ITEM_BYTES[config.dtype]
    sizes = held_bytes(weights, device, item)
    held = {name: size for name, size in sizes.items() if layer_of(name) in layers}
    if last:
        norms = [name for name in sizes if layer_of(name) is None and name not in (EMBEDDING, HEAD)]
        held |= {name: sizes[name] for name in (*norms, HEAD if HEAD in sizes else EMBEDDING)}
    rows = weights.packed.get(EMBEDDING)
    if first and rows is not None and device == "cpu":
        held["rows to look up"] = rows.nbytes  # beside a head that may share them
    elif first:
        held[EMBEDDING] = sizes[EMBEDDING]
    said = read_json(folder / "config.json")
    kv = kv_bytes_per_position(said, layers, 1, item)
    states = state_bytes(said, layers, config.tokens_in_flight, item) if has_states(said) else 0
    return sum(held.values()) + config.max_num_seqs * states, kv


def held_bytes(weights: Inventory, device: str, item: int) -> dict[str, int]:
    """What each weight takes in memory where it is multiplied with, at `item` bytes a number that is not packed.

    On CPUs packed weights stay so, and those of x86 multiply them as they are; on other devices they are unpacked.
    """
    sizes = {name: entry.elements * item for name, entry in weights.entries.items()}
    if device == "cpu":
        products = platform.machine() in ("x86_64", "AMD64")
        sizes |= {name: weight.held_bytes(products=products) for name, weight in weights.packed.items()}
    return sizes


def check_fits(needs: Sequence[Need], max_len: int, available: int) -> None:
    """Raises `ConfigError` where `needs`, all on one device, exceed its `available` bytes, and says what would fit."""
    usable = int(available * (1 - _RESERVE))
    total = sum(need.total(max_len) for need in needs)
    if total <= usable:
        return
    weights = sum(need.weight_bytes for need in needs)
    pooled = sum(need.kv_bytes(max_len) for need in needs if need.pool)
    longest = bisect_right(range(1, max_len), usable, key=lambda length: sum(need.total(length) for need in needs))
    if longest >= 1:
        mend = f"use --max-model-len {longest} or less, fewer --max-num-seqs, or on CPUs --max-total-tokens"
    elif pooled and usable > weights:
        mend = "use fewer --max-total-tokens"
    else:
        mend = "the weights alone do not fit: use more devices or hosts, --dtype bfloat16 or another model"
    raise ConfigError(
        f"--max-model-len {max_len}: {' and '.join(need.who for need in needs)} on {needs[0].device} "
        f"need{'s' if len(needs) == 1 else ''} {total / _GIB:.2f} GiB ({weights / _GIB:.2f} GiB of weights) and "
        f"{usable / _GIB:.2f} GiB are free; {mend}"
    )


def check_devices(needs: Iterable[Need], max_len: int, free: Callable[[str], int | None]) -> None:
    """`check_fits` for every device; `free` tells its bytes, or None where only its own processes can ask it."""
    for (_, device), together in by_device(needs).items():
        if (available := free(device)) is not None:
            check_fits(together, max_len, available)


def report(needs: Iterable[Need], config: EngineConfig) -> list[str]:
    """A line for each part of an engine and device."""
    lines = []
    for need in needs:
        kv = need.kv_bytes(config.max_model_len)
        each = f"{need.slots} x {config.max_model_len} positions"
        shared = f"{need.pool} positions for {need.slots} slots" if need.pool else each
        slots = f" ({shared}, {need.kv_bytes_per_position} bytes each{_windows(need)})" if kv else ""
        where = f"{need.host} {need.device}".strip()
        lines.append(f"{need.who} on {where}: {_shown(need.weight_bytes)} weights, {_shown(kv)} KV{slots}")
    return lines


def _windows(need: Need) -> str:
    held = f"; {need.window_bytes} of them for the {need.window_most} that windows need of a slot"
    return held if need.window_bytes else ""


def by_device(needs: Iterable[Need]) -> dict[tuple[str, str], list[Need]]:
    """The same by (host, device)."""
    found: dict[tuple[str, str], list[Need]] = {}
    for need in needs:
        found.setdefault((need.host, need.device), []).append(need)
    return found


def host_of(address: str) -> str:
    """The host of a tcp address; other kinds of address are all on one host, ""."""
    return address.removeprefix("tcp://").rpartition(":")[0] if address.startswith("tcp://") else ""


def available_host_bytes() -> int:
    """Memory this host can still hand out, page cache included."""
    return int(psutil.virtual_memory().available)


def host_bytes() -> int:
    """All memory of this host."""
    return int(psutil.virtual_memory().total)


def free_bytes(device: str) -> int | None:
    """Memory that is free on `device` of this host; None where nobody tells."""
    return available_host_bytes() if device == "cpu" else free_gpu_bytes(device)


def driver_names(gpus: Sequence[int], visible: str | None) -> list[str]:
    """An index, or a UUID, for each of `gpus`: what `visible` lists at that place.

    `visible` is the value of CUDA_VISIBLE_DEVICES, by which CUDA's indices differ from the driver's.
    """
    if not visible:
        return [str(gpu) for gpu in gpus]
    listed = [name.strip() for name in visible.split(",")]
    return [listed[gpu] for gpu in gpus if gpu < len(listed)]


def driver_handle(name: str) -> object:
    """The driver's handle of what `driver_names` has named."""
    if name.isdecimal():
        handle: object = pynvml.nvmlDeviceGetHandleByIndex(int(name))
    else:
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    return handle


def free_gpu_bytes(device: str) -> int | None:
    """Memory that is free on a device such as `cuda:1`; None where the driver does not tell."""
    try:
        pynvml.nvmlInit()
        names = driver_names([int(device.removeprefix(_CUDA))], os.environ.get("CUDA_VISIBLE_DEVICES"))
        return int(pynvml.nvmlDeviceGetMemoryInfo(driver_handle(names[0])).free) if names else None
    except pynvml.NVMLError:
        return None


def _shown(count: int) -> str:
    return f"{count / _GIB:.2f} GiB" if count >= _GIB else f"{count >> 20} MiB"

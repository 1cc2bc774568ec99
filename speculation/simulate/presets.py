"""Common boxes and models, from bytes and bandwidth. `presets.json` names the source of each figure."""

from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import TypeVar

import msgspec

from speculation.simulate.pipeline import Pipeline
from workers.decisions.split import balance
from workers.shared.errors import ConfigError

_FILE = Path(__file__).with_name("presets.json")
_DRAFT_LAYERS = 2  # of the draft module whose time is predicted, beside a head over the whole vocabulary
_GIB = 2**30
_T = TypeVar("_T")


class _Sourced(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    assumed: bool
    source: str


class Gpu(_Sourced, frozen=True):
    """One device."""

    bandwidth_gbs: float
    memory_gib: float


class DeviceLink(_Sourced, frozen=True):
    """Between two devices."""

    bandwidth_gbs: float
    latency_us: float
    all_reduce_us: float  # of one hidden state, between two devices


class Box(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal devices in a row; `slow_hops` of the hops between them go over `slow_link`."""

    gpu: str
    count: int
    link: str
    slow_hops: int
    slow_link: str | None


class ModelPreset(_Sourced, frozen=True):
    """A decoder-only model."""

    layers: int
    layer_parameters: int
    head_parameters: int
    hidden: int


class Weights(_Sourced, frozen=True):
    """How parameters are stored."""

    bits: float
    row_cost: tuple[float, ...]  # a stage's time for frames of 1, 2, 4, 8 tokens, in times of one


class Efficiency(_Sourced, frozen=True):
    """Share of the memory bandwidth that decoding one sequence reaches."""

    share: float


class AssumedCosts(_Sourced, frozen=True):
    """What every frame costs beside computing, microseconds."""

    control_us: float
    commit_us: float
    overhead_us: float
    sample_us: float


class PublicFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens/s that somebody has published."""

    what: str
    one_device: float
    tensor_parallel: float
    source: str


class Presets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    gpus: dict[str, Gpu]
    links: dict[str, DeviceLink]
    boxes: dict[str, Box]
    models: dict[str, ModelPreset]
    weights: dict[str, Weights]
    efficiency: Efficiency
    costs: AssumedCosts
    public_tensor_parallel: list[PublicFigure]


class Machine(msgspec.Struct, frozen=True):
    """One box with one model on it."""

    pipeline: Pipeline
    whole_ms: float  # all layers and the head on one device, if it had the memory
    fits: bool  # all devices together hold the weights
    fits_one: bool
    all_reduce_ms: float
    layers: int


def load_presets() -> Presets:
    """What comes with Echelon."""
    return msgspec.json.decode(_FILE.read_bytes(), type=Presets)


def machine(presets: Presets, box_name: str, model_name: str, weights_name: str) -> Machine:
    """A preset box with a preset model; raises `ConfigError` naming the option whose value is unknown."""
    box = _pick("--box", presets.boxes, box_name)
    model = _pick("--model", presets.models, model_name)
    weights = _pick("--weights", presets.weights, weights_name)
    gpu, link, costs = presets.gpus[box.gpu], presets.links[box.link], presets.costs
    layer_bytes = int(model.layer_parameters * weights.bits / 8)
    head_bytes = int(model.head_parameters * weights.bits / 8)

    def read_ms(size: float) -> float:
        return size / (gpu.bandwidth_gbs * 1e9 * presets.efficiency.share) * 1e3

    # Activations travel in 16 bits; a slow hop is shared out among all, which changes no sum.
    hops = [_hop_ms(link, 2 * model.hidden)] * (box.count - 1)
    # An all-reduce of a few kilobytes waits for a tree of messages; one level of it crosses the slow link.
    all_reduce_us = link.all_reduce_us * log2(box.count)
    if box.slow_link is not None:
        slow = presets.links[box.slow_link]
        hops[: box.slow_hops] = [_hop_ms(slow, 2 * model.hidden)] * box.slow_hops
        all_reduce_us += slow.all_reduce_us - link.all_reduce_us
    pipeline = Pipeline(
        stage_ms=tuple(
            max(read_ms(layers * layer_bytes), 1e-3)
            for layers in balance([layer_bytes] * model.layers, head_bytes, box.count)
        ),
        head_ms=read_ms(head_bytes) + costs.sample_us / 1e3,
        overhead_ms=costs.overhead_us / 1e3,
        hop_ms=sum(hops) / len(hops) if hops else 0.0,
        control_ms=costs.control_us / 1e3,
        commit_ms=costs.commit_us / 1e3,
        draft_ms=read_ms(_DRAFT_LAYERS * layer_bytes + head_bytes),
        row_cost=weights.row_cost,
    )
    total = model.layers * layer_bytes + head_bytes
    stored = total + head_bytes  # the embedding is as large as the head, and is not read
    usable = 0.9 * gpu.memory_gib * _GIB  # the rest is for keys, values and activations
    return Machine(
        pipeline=pipeline,
        whole_ms=read_ms(total),
        fits=stored <= usable * box.count,
        fits_one=stored <= usable,
        all_reduce_ms=all_reduce_us / 1e3,
        layers=model.layers,
    )


def sources(
    presets: Presets, boxes: Sequence[str], models: Sequence[str], weights: Sequence[str]
) -> list[tuple[str, str]]:
    """Name and source of each figure behind these boxes, models and weights; says which are assumed."""
    used = [presets.boxes[name] for name in boxes]
    links = {name for box in used for name in (box.link, box.slow_link) if name is not None}
    found: dict[str, _Sourced] = {}
    found |= {name: presets.gpus[name] for name in sorted({box.gpu for box in used})}
    found |= {name: presets.links[name] for name in sorted(links)}
    found |= {name: presets.models[name] for name in models}
    found |= {name: presets.weights[name] for name in weights}
    found |= {"efficiency": presets.efficiency, "costs": presets.costs}
    return [(name, f"{one.source}{' (assumed)' if one.assumed else ''}") for name, one in found.items()]


def _hop_ms(link: DeviceLink, size: float) -> float:
    return link.latency_us / 1e3 + size / (link.bandwidth_gbs * 1e9) * 1e3


def _pick(option: str, known: dict[str, _T], name: str) -> _T:
    if name not in known:
        raise ConfigError(f"{option} {name}: choose from {', '.join(known)}")
    return known[name]

"""Loads draft heads and makes drafters of them."""

from pathlib import Path

import torch

from speculation.decisions.taps import columns_of_stages
from speculation.drafters.base import Drafter, Maker
from speculation.drafters.heads.chain import ChainDrafter
from speculation.drafters.heads.parallel import ParallelDrafter
from speculation.heads.checkpoint import load_head
from speculation.heads.mtp import read_mtp
from speculation.heads.network import EagleHead, FeatureHead
from speculation.heads.runtime import HeadRuntime
from speculation.heads.settle import settled
from speculation.taps import TapBuffer
from workers.model.shard import available_bytes
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.memory import check_fits, head_need
from workers.shared.model_files.draft_heads import HeadKind
from workers.shared.progress import Progress


def load_eagle3(engine: EngineConfig, vocab_size: int) -> Maker:
    """An EAGLE-3 head, of any layout that is read, each draft from the output for the one before."""
    head = _load(engine, "eagle3")
    return _chains(engine, head, vocab_size)


def load_peagle(engine: EngineConfig, vocab_size: int) -> Maker:
    """A P-EAGLE head, all drafts in one pass."""
    head = _load(engine, "peagle")
    rounds = engine.drafter.num_speculative_tokens > 0
    frames = 1 if rounds else engine.stages + engine.delta
    slots = _Slots(engine, head, engine.max_model_len + engine.tokens_in_flight + engine.frame_width)

    def make(slot: int) -> Drafter:
        return ParallelDrafter(slots.runtime(), slots.taps(), vocab_size, head, frames, branches=slots.branches)

    return make


def load_mtp(engine: EngineConfig, vocab_size: int) -> Maker:
    """The head for multi-token prediction in the target's own checkpoint, likewise."""
    _check_memory(engine)
    with Progress(f"head of {Path(engine.model).name}: loading on {engine.drafter.device}"):
        head = read_mtp(Path(engine.model))
        _place(head, engine)
    return _chains(engine, head, vocab_size)


def _chains(engine: EngineConfig, head: FeatureHead, vocab_size: int) -> Maker:
    slots = _Slots(engine, head, engine.max_model_len)
    return lambda slot: ChainDrafter(slots.runtime(), slots.taps(), vocab_size, branches=slots.branches)


class _Slots:
    """Makes what each slot has of its own."""

    def __init__(self, engine: EngineConfig, head: FeatureHead, rows: int) -> None:
        self._head = head
        self._rows = rows
        self._scratch = engine.scratch
        self.branches = engine.breadth > 1
        self._columns = columns_of_stages(head.anchors, engine.split)
        self._shape = (engine.max_model_len, len(head.anchors), head.target_width)

    def runtime(self) -> HeadRuntime:
        return HeadRuntime(self._head, self._rows, self._scratch)

    def taps(self) -> TapBuffer:
        return TapBuffer(self._columns, self._shape, self._head.dtype, self._head.device)


def _load(engine: EngineConfig, kind: HeadKind) -> EagleHead:
    """The configured head; raises `ConfigError` where it is missing, not read, for another target or too large."""
    config = engine.drafter
    if config.draft_model is None:
        raise ConfigError(f"--drafter {config.name} needs --draft-model PATH: the folder of a draft head")
    folder = Path(config.draft_model)
    _check_memory(engine)
    with Progress(f"draft head {folder.name}: loading on {config.device}"):
        loaded = load_head(folder, Path(engine.model), kind)
        _place(loaded.network, engine)
    if config.head_reading == "declared":
        return loaded.network
    return settled(loaded, folder, Path(engine.model), loaded.network.dtype, loaded.network.device)


def _place(head: FeatureHead, engine: EngineConfig) -> None:
    """Puts the head on its device, in the engine's dtype."""
    torch.set_num_threads(engine.drafter.threads)
    head.to(torch.device(engine.drafter.device), getattr(torch, engine.dtype))


def _check_memory(engine: EngineConfig) -> None:
    free = available_bytes(torch.device(engine.drafter.device))
    check_fits([head_need(engine)], engine.max_model_len, free)

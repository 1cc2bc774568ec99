"""From a configuration to a drafter for every KV slot, and to what the controller may choose from."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from speculation.decisions.estimates import Choice
from speculation.drafters.base import Drafter, DraftSource, Loader
from speculation.drafters.emulated import EmulatedDrafter
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.guarded import GuardedDrafter
from speculation.drafters.switched import SwitchedDrafter
from workers.shared.config import DrafterConfig, EngineConfig
from workers.shared.drafters import DRAFTERS, DrafterName
from workers.shared.grammar import load_grammars


def choices(config: DrafterConfig) -> list[Choice]:
    """What the controller may choose from, the cheapest first: the configured drafter, its parts, and none."""
    row = DRAFTERS[config.name]
    names = [config.name]
    if not config.always and config.name != "none":
        names = ["none", config.name, *row.beside]
    return sorted(map(_choice, names), key=lambda choice: (choice.listens, choice.prior))


def _choice(name: DrafterName) -> Choice:
    row = DRAFTERS[name]
    family = "module" if row.needs_module else ""
    return Choice(name, row.prior, row.silence, family, listens=row.listens, apart=bool(row.process))


def build_drafters(config: EngineConfig, vocab_size: int, offered: Sequence[Choice]) -> list[GuardedDrafter]:
    """The configured drafter for each slot, wrapped in all that it is served with; `offered` are its `choices`.

    Raises `ConfigError` naming the flag that is missing or contradicts another, or the file that cannot be read.
    """
    row = DRAFTERS[config.drafter.name]
    make = _loader(row.loader)(config, vocab_size)
    grammars = load_grammars(Path(config.model)) if row.has_opinion else None
    drafters = []
    for slot in range(config.max_num_seqs):
        drafter: Drafter = SwitchedDrafter(make(slot), config.drafter.name, offered)
        if config.emulate.draft_ms:
            drafter = EmulatedDrafter(drafter, config.emulate.draft_ms)
        if grammars is not None:
            drafter = ForcedDrafter(drafter, grammars)
        drafters.append(GuardedDrafter(drafter))
    return drafters


def sources_of(drafters: Iterable[Drafter]) -> set[DraftSource]:
    """What wakes the engine for them."""
    return {drafter.source for drafter in drafters if drafter.source is not None}


def _loader(path: str) -> Loader:
    module, _, function = path.partition(":")
    loader: Loader = getattr(import_module(module), function)
    return loader

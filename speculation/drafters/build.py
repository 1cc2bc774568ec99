"""From a configuration to a drafter for every KV slot."""

from importlib import import_module
from pathlib import Path

from speculation.decisions.governor import Governor
from speculation.drafters.base import Loader
from speculation.drafters.emulated import EmulatedDrafter
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.governed import GovernedDrafter
from speculation.drafters.guarded import GuardedDrafter
from workers.shared.config import EngineConfig
from workers.shared.drafters import DRAFTERS
from workers.shared.grammar import load_grammars


def build_drafters(config: EngineConfig, vocab_size: int, governor: Governor) -> list[GuardedDrafter]:
    """The configured drafter for each slot, wrapped in all that it is served with.

    Raises `ConfigError` naming the flag that is missing or contradicts another, or the file that cannot be read.
    """
    row = DRAFTERS[config.drafter.name]
    make = _loader(row.loader)(config, vocab_size)
    grammars = load_grammars(Path(config.model)) if row.has_opinion else None
    drafters = []
    for slot in range(config.max_num_seqs):
        drafter = make(slot)
        if config.emulate.draft_ms:
            drafter = EmulatedDrafter(drafter, config.emulate.draft_ms)
        if not config.drafter.always:
            drafter = GovernedDrafter(drafter, governor)
        if grammars is not None:
            drafter = ForcedDrafter(drafter, grammars)
        drafters.append(GuardedDrafter(drafter))
    return drafters


def _loader(path: str) -> Loader:
    module, _, function = path.partition(":")
    loader: Loader = getattr(import_module(module), function)
    return loader

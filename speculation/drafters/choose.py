"""From a configuration to a drafter."""

from pathlib import Path

from speculation.drafters.base import Drafter
from speculation.drafters.combined import CombinedDrafter
from speculation.drafters.emulated import EmulatedDrafter
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from speculation.drafters.scripted import MadeUpDrafter, ScriptedDrafter, load_script
from workers.shared.config import DrafterConfig, EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.grammar import load_grammars
from workers.shared.time_slices import available_cores


def choose_drafter(engine: EngineConfig, vocab_size: int) -> Drafter:
    """Builds the configured drafter; raises `ConfigError` naming the flag that is missing or contradicts another."""
    config = engine.drafter
    if config.name == "none":
        return NoDrafter()
    if config.name == "ngram":
        return ngram(config)
    if config.name == "model":
        from speculation.drafters.load_model import load_model_drafter  # imports torch: only where the model runs

        return load_model_drafter(engine)
    if config.name in ("pdm", "pdm+ngram"):
        from speculation.drafters.load_pdm import load_pdm  # imports torch: only where the module runs

        module = load_pdm(engine)
        if config.name == "pdm":
            return module
        return CombinedDrafter(module, ngram(config), module_delays_stages=_shares_cores(engine))
    if config.scripted_acceptance is not None and config.script is None:
        return MadeUpDrafter(vocab_size)
    if config.script is not None and config.scripted_acceptance is None:
        return ScriptedDrafter(load_script(Path(config.script)), vocab_size)
    raise ConfigError("--drafter scripted needs either --script FILE or --scripted-acceptance P, not both")


def _shares_cores(engine: EngineConfig) -> bool:
    """Whether the draft module and the stages have fewer cores between them than threads."""
    if engine.drafter.device != "cpu" or engine.devices[0] != "cpu":
        return False
    return available_cores() < engine.stages * engine.threads + engine.drafter.threads


def ngram(config: DrafterConfig) -> NgramDrafter:
    """The n-gram drafter; raises `ConfigError` where its lengths contradict each other."""
    if not 1 <= config.ngram_min <= config.ngram_max:
        raise ConfigError("--ngram-min must be at least 1 and at most --ngram-max")
    return NgramDrafter(config.ngram_max, config.ngram_min)


def with_emulated_time(drafter: Drafter, draft_ms: float) -> Drafter:
    """`drafter`, or one that takes at least `draft_ms` for a draft."""
    return EmulatedDrafter(drafter, draft_ms) if draft_ms else drafter


def with_forced_tokens(drafter: Drafter, config: DrafterConfig, model: Path) -> Drafter:
    """`drafter` as it serves requests with a grammar: `none` stays silent and `scripted` keeps to its script.

    Raises `ConfigError` for a broken tokenizer.json in the `model` folder.
    """
    if config.name in ("none", "scripted"):
        return drafter
    grammars = load_grammars(model)
    return drafter if grammars is None else ForcedDrafter(drafter, grammars)

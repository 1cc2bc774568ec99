"""Which layers see no further back than a window, and how much of a sequence those have to hold; torch-free."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workers.shared.config import EngineConfig
from workers.shared.model_files.families import family_of
from workers.shared.model_files.json_file import read_json

# Families whose layers all have the window, and after how many layers one of the others has none.
_EVERYWHERE = frozenset({"ministral3", "mistral", "mixtral", "phi3", "starcoder2"})
_PATTERNS = {"cohere2": 4, "gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4}
_SLIDING = "sliding_attention"
_BACK = 4  # whole chunks, the newest of a prompt, behind which later ones may begin


class WindowRule(NamedTuple):
    """What is kept of a sequence by layers that see a window."""

    window: int  # positions that a token sees, itself included
    chunk: int  # of prompts
    ahead: int  # tokens that may be in flight behind the oldest one that is not verified
    back: int  # whole prompt chunks, the newest, behind each of which a later prompt may begin

    @property
    def most(self) -> int:
        """Positions that a slot holds at most."""
        return 2 * self.window + (self.back + 2) * self.chunk + self.ahead


def layer_windows(config: Mapping[str, Any]) -> Sequence[int | None]:
    """How many positions a token sees in each layer, from a config.json; None for all.

    Where it is not certain that a layer has a window, it is taken to have none.
    """
    count: int = config["num_hidden_layers"]
    kind: str = config["model_type"]
    window = config.get("sliding_window")
    optional = "use_sliding_window" in family_of(config).fields
    if not window or (optional and not config.get("use_sliding_window")):
        return [None] * count
    if kind in _EVERYWHERE:
        return [window] * count
    pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", _PATTERNS.get(kind)))
    kinds = config.get("layer_types")
    if kinds is None and isinstance(pattern, int) and pattern > 0:
        kinds = [_SLIDING if (layer + 1) % pattern else "" for layer in range(count)]
    if kinds is None:
        return [None] * count
    last = count - 1 if family_of(config).uneven else count  # Gemma 4's last layer sees all, whatever is said
    return [window if said == _SLIDING and layer < last else None for layer, said in enumerate(kinds)]


def window_rule(config: EngineConfig) -> WindowRule | None:
    """By which the stages of an engine give back what no window reaches any more; None where they keep everything.

    That is on CPUs only, where memory comes and goes by pages, and where at least half of it is saved.
    """
    if set(config.devices) != {"cpu"}:
        return None
    widest = max((window or 0 for window in layer_windows(read_json(Path(config.model) / "config.json"))), default=0)
    # A chunk's end is noted once every stage has computed it; so many others may have been announced by then.
    under_way = config.stages + config.delta
    rule = WindowRule(widest, config.prefill_chunk, config.tokens_in_flight, _BACK + under_way)
    return rule if widest and 2 * rule.most <= config.max_model_len else None

"""An exit head as a drafter, as in PPSD (arXiv 2509.19368).

It is a draft module whose rows are all of tokens that have left stage 0, so it computes each once, and one for a draft.
Its draft exists only after stage 0 and itself: it is never ready ahead of the credit, as a draft module's is.
"""

from collections.abc import Callable

from speculation.decisions.features import RowRule
from speculation.drafters.load_pdm import load as load_module
from speculation.drafters.pdm import PdmDrafter
from workers.shared.config import EngineConfig


def load(engine: EngineConfig, vocab_size: int) -> Callable[[int], PdmDrafter]:
    """See `speculation.drafters.load_pdm.load`."""
    return load_module(engine, vocab_size, RowRule.EXIT)

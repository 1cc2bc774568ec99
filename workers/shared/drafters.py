"""The drafters there are: a row for each, with what everybody but the drafter itself has to know of it.

A new drafter is one file in `speculation/drafters/`, and one name and one row here. Nothing else asks for its name.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

DrafterName = Literal[
    "none", "ngram", "model", "cascade", "pdm", "pdm+ngram", "exit", "eagle3", "peagle", "mtp", "scripted"
]
Reads = Literal["nothing", "text", "states in flight", "newest state", "verified states"]


class DrafterRow(NamedTuple):
    """What is known of a drafter before it is loaded."""

    loader: str  # "module:function" of a `speculation.drafters.base.Loader`, imported only where the drafter runs
    reads: Reads = "text"  # what its drafts are made from; "states in flight": hidden states of unfinished frames;
    # "newest state": also that of the newest one, behind stage 0; "verified states": of finished frames alone
    needs_module: bool = False  # --draft-module
    ships: bool = False  # whether one may come with Echelon
    needs_model: bool = False  # --draft-model: a model, or a draft head where it reads hidden states
    needs_cascade: bool = False  # --cascade
    needs_script: bool = False  # --script or --scripted-acceptance
    prior: float = 0.0  # share of tokens for which its draft is right, as far as is known before any is made
    silence: float = 0.0  # share of tokens for which it has no draft, likewise
    beside: "tuple[DrafterName, ...]" = ()  # drafters that it is made of: the controller may choose them, too
    process: str = ""  # "module" that runs in a process beside rank 0, on its host

    @property
    def reads_verified(self) -> bool:
        """Whether it reads hidden states of verified tokens alone: a draft head."""
        return self.reads == "verified states"

    @property
    def own_head(self) -> bool:
        """Whether it is a draft head in the target's own checkpoint."""
        return self.reads_verified and not self.needs_model

    @property
    def works_in_rounds(self) -> bool:
        """Whether it can draft for draft-then-verify, where no frame is in flight while drafts are made."""
        return not self.listens or self.reads_verified

    @property
    def listens(self) -> bool:
        """Whether stages send it hidden states."""
        return self.reads not in ("nothing", "text")

    @property
    def branches(self) -> bool:
        """Whether it can draft behind several drafts at one position."""
        return self.reads != "newest state" and not self.process

    @property
    def fills_frames(self) -> bool:
        """Whether it can draft behind a draft that is not announced yet, as in frames of several tokens."""
        return self.reads != "newest state"

    @property
    def computes(self) -> bool:
        """Whether rank 0 computes with a network for it, and so needs torch."""
        return self.needs_module or self.needs_model or self.listens

    @property
    def has_opinion(self) -> bool:
        """Whether it drafts what it finds in the request, and not silence or what it was told: grammars may help it."""
        return self.reads != "nothing"


DRAFTERS: Mapping[DrafterName, DrafterRow] = MappingProxyType(
    {
        "none": DrafterRow("speculation.drafters.none:load", "nothing", silence=1.0),
        # The priors of lookup and of the module are those of docs/benchmarks.md, over all texts and temperatures.
        "ngram": DrafterRow("speculation.drafters.ngram:load", prior=0.3, silence=0.4),
        "model": DrafterRow("speculation.drafters.load_model:load", needs_model=True, prior=0.6),
        "cascade": DrafterRow(
            "speculation.cascade.drafter:load",
            needs_cascade=True,
            prior=0.6,
            silence=0.2,
            process="speculation.cascade",
        ),
        "pdm": DrafterRow(
            "speculation.drafters.load_pdm:load", "states in flight", needs_module=True, ships=True, prior=0.7
        ),
        "pdm+ngram": DrafterRow(
            "speculation.drafters.load_pdm:load_combined",
            "states in flight",
            needs_module=True,
            ships=True,
            prior=0.7,
            beside=("ngram", "pdm"),
        ),
        # Of a head of one layer, as others have measured it (docs/methods.md).
        "exit": DrafterRow("speculation.drafters.exit:load", "newest state", needs_module=True, prior=0.45),
        # Of published heads, the first draft of a round is right for 0.6 to 0.8 of tokens, and later ones less often.
        "eagle3": DrafterRow(
            "speculation.drafters.heads.load:load_eagle3", "verified states", needs_model=True, prior=0.6
        ),
        "peagle": DrafterRow(
            "speculation.drafters.heads.load:load_peagle", "verified states", needs_model=True, prior=0.5
        ),
        "mtp": DrafterRow("speculation.drafters.heads.load:load_mtp", "verified states", prior=0.6),
        "scripted": DrafterRow("speculation.drafters.scripted:load", "nothing", needs_script=True, prior=0.7),
    }
)


def names_of(are: Callable[[DrafterRow], bool]) -> str:
    """The drafters that `are` so, for messages: `a or b`."""
    return " or ".join(name for name, row in DRAFTERS.items() if are(row))

"""The methods that are compared, and what each needs. Pure.

Whatever `METHODS` knows is compared, but rehearsals and another program's kernels: what is said here of some of them is
how they are called elsewhere.
"""

from collections.abc import Collection
from typing import NamedTuple

from speculation.bench.configuration import (
    LLAMA_CPP,
    METHODS,
    NONE,
    REHEARSALS,
    USES_CASCADE,
    Method,
    has_network,
)
from workers.shared.drafters import DRAFTERS


class Entry(NamedTuple):
    """One method on the page."""

    method: str  # of `METHODS`
    name: str  # as it is called elsewhere
    missing: str = ""  # what it cannot be measured without, and how to come by it

    @property
    def how(self) -> Method:
        """What it is made of."""
        return METHODS[self.method]

    @property
    def streams_a_network(self) -> bool:
        """Whether a network drafts while the stages are at work: then it matters whether it has a device of its own."""
        return has_network(self.how) and not self.how.rounds and self.method not in USES_CASCADE

    @property
    def emulates(self) -> bool:
        """Whether it is measured with emulated stages: not what measures them itself, and nothing of one device."""
        return not self.how.one_device and not self.how.chooses


_NAMES = {
    NONE: "plain pipeline",
    "single": "one device",
    "hf": "Hugging Face `generate`",
    "dtv-ngram": "draft-then-verify, n-gram",
    "dtv-model": "draft-then-verify, draft model",
    "eagle3": "EAGLE-3, streamed",
    "dtv-eagle3": "EAGLE-3, rounds",
    "tree-eagle3": "EAGLE-3, four drafts a position, streamed",
    "dtv-tree-eagle3": "EAGLE-3, four drafts a position, rounds",
    "peagle": "P-EAGLE, streamed",
    "dtv-peagle": "P-EAGLE, rounds",
    "mtp": "multi-token prediction, streamed",
    "dtv-mtp": "multi-token prediction, rounds",
    "exit": "PPSD",
    "cascade-rounds": "PipeSpec",
    "cascade": "PipeSpec, a frame in every stage",
    "cascade-direct": "PipeSpec, the smallest model alone",
    "cascade-sync": "PipeSpec, one model at a time",
    "ngram": "one token a frame, n-gram",
    "model": "one token a frame, draft model",
    "pdm": "SPD, one token a frame",
    "pdm+ngram": "SPD beside n-gram",
    "wide-ngram": "four tokens a frame, n-gram",
    "wide-pdm": "SPD, four tokens a frame",
    "tree-ngram": "four drafts a position, n-gram",
    "tree-model": "SpecPipe: four drafts a position, draft model",
    "chosen": "SPD or n-gram, chosen",
    "best": "chosen, frames as wide as pays",
}

_TRAINED = {
    "exit": "echelon train MODEL --kind exit --data DATA --out DIR --anchors 0,4,8,16 --stages 2,4,8",
    "pdm": "echelon train MODEL --kind pdm --data DATA --out DIR --anchors 0,7,12,15 --stages 2,4,8",
    "pdm+ngram": "echelon train MODEL --kind pdm --data DATA --out DIR --anchors 0,7,12,15 --stages 2,4,8",
    "eagle3": "echelon train MODEL --kind eagle3 --data DATA --out DIR",
    "peagle": "echelon train MODEL --kind peagle --data DATA --out DIR",
}


def entries(given: Collection[str]) -> list[Entry]:
    """All methods that mean something, in the order of the page; `given` are the drafters that have their files."""
    order = [*_NAMES, *METHODS]
    known = sorted((method for method in METHODS if method not in (*REHEARSALS, LLAMA_CPP)), key=order.index)
    return [Entry(method, _NAMES.get(method, method), _missing(METHODS[method], given)) for method in known]


def _missing(method: Method, given: Collection[str]) -> str:
    if not has_network(method) or method.drafter in given:
        return ""
    name = str(method.drafter)
    if name in _TRAINED:
        return f"not trained: `{_TRAINED[name]}`, then `--checkpoint {name}=DIR`"
    if DRAFTERS[method.drafter].own_head:  # type: ignore[index]
        return "for models with a head in their own checkpoint"
    flag = "--cascade SMALL[,MIDDLE...]" if DRAFTERS[method.drafter].needs_cascade else "--draft-model PATH"  # type: ignore[index]
    return f"nothing given to draft with: `{flag}`"


def measurable(all_of_them: Collection[Entry]) -> list[Entry]:
    """Those that lack nothing."""
    return [entry for entry in all_of_them if not entry.missing]

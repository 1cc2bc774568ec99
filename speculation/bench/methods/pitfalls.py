"""What makes such comparisons wrong, and how each is met here. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Made:
    """How the page came about."""

    command: str
    machine: str  # CPU, cores, date, commit
    cores: int
    prompts: int  # of all data sets
    max_tokens: int
    drafts: int  # K
    sweep: Sequence[int]  # of K, m and W, besides
    row_cost: Sequence[float]  # emulated
    draft_model: str | None
    warnings: Sequence[str] = ()


def pitfalls(made: Made) -> list[str]:
    """A line for each."""
    costs = (
        ", ".join(f"c({2**place}) = {cost:g}" for place, cost in enumerate(made.row_cost)) or "all rows cost the same"
    )
    model = "none is given" if made.draft_model is None else f"it is {made.draft_model}"
    tried = (
        f"others, {', '.join(map(str, made.sweep))}, are below each emulated table"
        if made.sweep
        else "nothing was swept"
    )
    lines = [
        "Devices: every table says how many; what drafts with a network is shown with a device of its own and without.",
        "Rounds and streams of one drafter are separate rows; nothing streams that is called by the name of a method "
        "in rounds.",
        "Kernels: one program for every width, eager, on this CPU; there are no graphs that one width has and another "
        "has not.",
        "Training: the heads and modules that were trained here had the same data; the budgets are in their "
        "`provenance.json` and `settings.json`, and the shipped draft module's, which is larger, in "
        "[draft-module.md](draft-module.md). Heads of others would be rows of their own.",
        f"Length: {made.prompts} prompts and at most {made.max_tokens} tokens an answer, far below 2,048. No row of a "
        "long context has been run.",
        "Acceptance is counted in one way: neither the prefill's token nor what follows an end token. AL includes the "
        "token that the target adds. A round takes n cycles and its drafts, so its × plain is below its E.",
        "Baselines: the plain pipeline, one device and Hugging Face are rows. × plain and × one device are columns.",
        "T=1: every drafter adds the target's own noise and obeys the request's top-k and top-p. The rules of "
        "verification that others have published are not here.",
        f"Tuning: K = {made.drafts} drafts a round and, where there are several, four tokens a frame or drafts a "
        f"position for all; {tried}, so a row may gain from another value.",
        f"Width: emulated stages take, for so many rows, {costs}: 16-bit weights on a card that memory limits, as "
        "published (what lies between 16 and 64 is a guess). The CPU of the real rows computes, and its wide frames "
        "cost more.",
        "The head's reads are in the measured time of a draft, those of the target's head in the last stage.",
        "PipeSpec: start and the smaller models' prefill are in the time that a client sees; the count of devices has "
        "all models.",
        "Figures of other engines are in no table.",
        f"Prompts: data sets are kinds of text, and their spread is shown. A draft model, if any, has the target's "
        f"vocabulary: {model}.",
    ]
    return [f"{number}. {line}" for number, line in enumerate(lines, 1)]

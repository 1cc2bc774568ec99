"""The page, from figures. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from speculation.bench.configuration import SEVERAL
from speculation.bench.methods.entries import Entry
from speculation.bench.methods.figures import Figures, Place
from speculation.bench.methods.pitfalls import Made, pitfalls
from speculation.bench.methods.times import LoneTimes

_INTRODUCTION = """\
# Methods

Written by `python -m speculation.bench.methods`; do not edit. All methods on the same stage workers, over HTTP, with
the same prompts, seeds, noise and kernels; what differs is the drafter and how drafts become frames. Every answer is
compared with the plain pipeline's. Figures are defined in [benchmarks.md](benchmarks.md), and:

* **AL**: tokens until the first that was not drafted right, that one included. In rounds that is the tokens of a round,
  of which at most K are drafts; a stream has no such end.
* **E**: n times the tokens per cycle: the speed-up over the plain pipeline if nothing but the stages took time.
* **× plain**: tokens/s over those of the plain pipeline with the same stages, at the same temperature.
* **spread**: tokens/s of the slowest and the fastest data set and repeat.
"""


@dataclass(frozen=True)
class Emulated:
    """One number of stages, with times that pass asleep."""

    stages: int
    slowdown: float
    own: Mapping[Place, Figures]  # every drafter with a network has a device of its own: n + 1
    shared: Mapping[Place, Figures]  # it has a share of a stage's: n
    tried: Mapping[int, Mapping[Place, Figures]] = field(default_factory=dict)  # of n + 1, with other numbers


@dataclass(frozen=True)
class PageContent:
    """Everything that the page is made of."""

    entries: Sequence[Entry]
    temperatures: Sequence[float]
    made: Made
    wall_stages: int
    wall: Mapping[Place, Figures] = field(default_factory=dict)
    times: LoneTimes | None = None
    emulated: Sequence[Emulated] = ()


def page(measured: PageContent) -> str:
    """Markdown."""
    lines = [_INTRODUCTION, *_made(measured.made), *_wall(measured), *_times(measured)]
    for emulated in measured.emulated:
        lines += _emulated(measured, emulated) + _tried(measured, emulated)
    lines += ["## What to look out for", "", *pitfalls(measured.made), "", *_not_run(measured)]
    return "\n".join(lines).rstrip() + "\n"


def _made(made: Made) -> list[str]:
    return [f"`{made.command}`", "", f"{made.machine}.", ""] + [f"**{warning}**\n" for warning in made.warnings]


def _wall(measured: PageContent) -> list[str]:
    n = measured.wall_stages
    lines = [
        f"## Real time, {n} stages",
        "",
        f"Wall clock on this machine, whose {measured.made.cores} cores stages and drafter share: {n} devices in all.",
        "",
        _row(
            "method",
            "T",
            "acceptance",
            "AL",
            "E",
            "tok/cycle",
            "draft ms",
            "tok/s",
            "spread",
            "× plain",
            "× one device",
        ),
        _row(*["---"] * 11),
    ]
    for entry in measured.entries:
        stages = 1 if entry.how.one_device else n
        for temperature in measured.temperatures:
            place = (entry.method, stages, temperature)
            cells = _cells(measured.wall.get(place), entry, real=True)
            lines.append(_row(entry.name, f"{temperature:g}", *cells))
    return [*lines, ""]


def _times(measured: PageContent) -> list[str]:
    lines = ["## Drafts alone", ""]
    if measured.times is None:
        return [*lines, "Not run.", ""]
    times = measured.times
    lines += [
        f"One token through all layers of the target takes {times.token_ms:.1f} ms on a core of its own. One draft, "
        f"beside one stage that has another core:",
        "",
        _row("method", "draft ms", "of a token"),
        _row(*["---"] * 3),
    ]
    for entry in measured.entries:
        if (draft := times.draft_ms.get(entry.method)) is not None:
            lines.append(_row(entry.name, f"{draft:.2f}", f"{draft / times.token_ms:.3f}"))
    return [*lines, ""]


def _emulated(measured: PageContent, emulated: Emulated) -> list[str]:
    n = emulated.stages
    lines = [
        f"## Emulated, {n} stages",
        "",
        f"Stages sleep until 1/{n} of a token's time has passed, drafts until theirs has, all {emulated.slowdown:.1f} "
        f"times as long as measured, so that this machine's cores keep pace; what else a cycle costs weighs as much "
        f"less. Own device: {n} + 1 devices. Shared: {n} devices, of which the drafter takes its share and layers are "
        f"moved so that all have the same work; in rounds and without a network that changes nothing.",
        "",
        _row("method", "T", "acceptance", "AL", "E", "tok/cycle", "× plain, own device", "× plain, shared", "spread"),
        _row(*["---"] * 9),
    ]
    for entry in measured.entries:
        if not entry.emulates:
            continue
        for temperature in measured.temperatures:
            place = (entry.method, n, temperature)
            own = emulated.own.get(place)
            shared = emulated.shared.get(place) if entry.streams_a_network else own
            head, spread = _cells(own, entry, real=False), _spread(own)
            lines.append(_row(entry.name, f"{temperature:g}", *head, _ratio(own), _ratio(shared), spread))
    return [*lines, ""]


def _tried(measured: PageContent, emulated: Emulated) -> list[str]:
    """What other numbers make of the methods that have one."""
    if not emulated.tried:
        return []
    numbers = sorted(emulated.tried)
    lines = [
        f"× plain of the same pipelines with other numbers: K drafts a round, m tokens a frame, W drafts a position. "
        f"Of the table above are K = {measured.made.drafts}, m = {SEVERAL} and W = {SEVERAL}.",
        "",
        _row("method", "T", "of", "above", *map(str, numbers)),
        _row(*["---"] * (4 + len(numbers))),
    ]
    for entry in measured.entries:
        if not entry.emulates or not entry.how.number:
            continue
        for temperature in measured.temperatures:
            place = (entry.method, emulated.stages, temperature)
            ratios = [_ratio(emulated.tried[number].get(place)) for number in numbers]
            above = _ratio(emulated.own.get(place))
            lines.append(_row(entry.name, f"{temperature:g}", entry.how.number, above, *ratios))
    return [*lines, ""]


def _not_run(measured: PageContent) -> list[str]:
    lines = ["## Not here", ""]
    lines += [f"* {entry.name}: {entry.missing}." for entry in measured.entries if entry.missing]
    lines += [
        "* Published rules of verification (EAGLE's point masses at T=1): every method is verified by equality with "
        "the target's own sample, under shared noise.",
        "* Tensor parallelism: there is none here; `echelon simulate` predicts it.",
    ]
    return lines


def _cells(found: Figures | None, entry: Entry, *, real: bool) -> list[str]:
    if found is None:
        missing = "not trained" if entry.missing.startswith("not trained") else "not run"
        return [missing, *["–"] * (8 if real else 3)]
    cells = [
        _number(found.acceptance, 3),
        _number(found.tokens_a_miss),
        _number(found.E),
        _number(found.per_cycle, 3),
    ]
    if not real:
        return cells
    wrong = f" (**{found.differing} answers differ**)" if found.differing else ""
    return [
        *cells,
        _number(found.draft_ms, 1),
        f"{found.tokens_per_second:.1f}{wrong}",
        _spread(found),
        _number(found.over_plain),
        _number(found.over_one_device),
    ]


def _ratio(found: Figures | None) -> str:
    if found is None:
        return "–"
    wrong = f" (**{found.differing} answers differ**)" if found.differing else ""
    return _number(found.over_plain) + wrong


def _spread(found: Figures | None) -> str:
    return "–" if found is None else f"{found.least:.1f}..{found.most:.1f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"

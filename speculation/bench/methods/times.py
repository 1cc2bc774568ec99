"""From times measured on one device each to pipelines of devices that are not at hand. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from speculation.bench.analysis.breakdown import decoding
from speculation.bench.analysis.cells import Cell
from speculation.bench.configuration import SINGLE, USES_CASCADE
from workers.shared.emulation import Emulation

DRAFT_MODEL = "model"

# Real work of a cycle: a token through all layers, and a draft, which is taken to cost no more than that. It has to be
# done within the emulated time of one stage, by the cores there are, with something to spare.
_WORK = 2.2


@dataclass(frozen=True)
class LoneTimes:
    """What was measured with nothing else at work."""

    token_ms: float  # all layers, head and sampler
    draft_ms: Mapping[str, float]  # a draft, by method

    def updated(self, drafts: Iterable[Cell]) -> "LoneTimes":
        """The same but for the drafts that these cells have timed."""
        return LoneTimes(self.token_ms, {**self.draft_ms, **drafts_ms(drafts)})

    def slowdown(self, stages: int, cores: int) -> float:
        """By how much every emulated time is longer, so that this machine keeps pace with `stages` devices."""
        return max(1.0, _WORK * stages / cores)

    def emulation(
        self, method: str, stages: int, cores: int, row_cost: tuple[float, ...], *, shared: bool
    ) -> Emulation:
        """A pipeline of `stages` devices, each as fast as this one's, all times longer by `slowdown`.

        `shared`: the drafter has no device of its own, but a share of one stage's, and layers are moved so that all
        devices have the same work.
        """
        factor, draft = self.slowdown(stages, cores), self.draft_ms.get(method, 0.0)
        if method in USES_CASCADE:  # its model's passes are those of the draft model
            times = self.emulation("", stages, cores, row_cost, shared=False)
            return replace(times, cascade_ms=(round(factor * self.draft_ms[DRAFT_MODEL], 3),))
        stage = (self.token_ms + (draft if shared else 0.0)) / stages
        return Emulation(stage_ms=round(factor * stage, 3), draft_ms=round(factor * draft, 3), row_cost=row_cost)


def lone_times(cells: Iterable[Cell]) -> LoneTimes | None:
    """From cells of one stage; None where all layers in one stage have not been measured."""
    known = list(cells)
    alone = [cell for cell in known if cell.key.contender.method == SINGLE]
    token_ms = decoding(alone, 0).frame_ms if alone else 0.0
    if not token_ms:
        return None
    return LoneTimes(token_ms, drafts_ms(known))


def drafts_ms(cells: Iterable[Cell]) -> dict[str, float]:
    """`draft_ms` by method, of those that have drafted."""
    by_method: dict[str, list[Cell]] = {}
    for cell in cells:
        by_method.setdefault(cell.key.contender.method, []).append(cell)
    drafts = {method: draft_ms(those) for method, those in sorted(by_method.items())}
    return {method: time for method, time in drafts.items() if time is not None}


def draft_ms(cells: Sequence[Cell]) -> float | None:
    """Mean time of a draft, or of all those at a position: the drafter's whole time over the positions it drafted for.

    None where it drafted for none. Times it was asked in vain are in it, as waiting for a hidden state.
    """
    stats = [cell.counters.stats for cell in cells if cell.counters is not None]
    made = sum(each.counts.levels for each in stats)
    return sum(each.draft_ns for each in stats) / made / 1e6 if made else None

"""Where the time goes: shares of a stage's time, and the parts of a cycle. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from speculation.bench.analysis.cells import Cell
from speculation.bench.analysis.counters import Counters
from workers.shared.messages import StageTimings

_MS = 1e6  # nanoseconds
_PARTS = ("forward", "sample", "emulate", "send", "receive")  # of a stage's time, by the names of its timings


class StageShares(msgspec.Struct, frozen=True):
    """How one stage spent the time in which a request was being answered; the shares add up to 1."""

    forward: float
    sample: float
    emulate: float
    send: float
    receive: float
    idle: float

    @property
    def busy(self) -> float:
        """At work on a frame."""
        return self.forward + self.sample + self.emulate + self.send


class CycleParts(msgspec.Struct, frozen=True):
    """The mean cycle of decoding, milliseconds: what its slowest stage did, and what rank 0 did at the same time.

    The stage's parts add up to the cycle.
    """

    forward: float  # layers
    sample: float  # final norm, head and sampler
    emulate: float  # asleep
    send: float
    receive: float  # waiting for the tensor of an announced frame
    wait: float  # no frame announced
    announce: float
    commit: float
    draft: float


class StageTime(msgspec.Struct, frozen=True):
    """One stage's decoding: its timings without the prompts', nanoseconds, and how many frames it took."""

    timings: dict[str, float]
    frames: int

    @property
    def frame_ms(self) -> float:
        """Mean computing time for a frame, milliseconds."""
        computing = sum(self.timings[part] for part in ("forward_ns", "sample_ns", "emulate_ns"))
        return computing / self.frames / _MS if self.frames > 0 else 0.0


def stage_shares(timings: StageTimings, active_ns: int) -> StageShares:
    """Shares of `active_ns`, the time in which requests were being answered."""
    parts: dict[str, int] = {name: getattr(timings, f"{name}_ns") for name in _PARTS}
    # A stage may finish dead frames a moment after the last token has gone out.
    whole = max(active_ns, sum(parts.values()), 1)
    shares = {name: value / whole for name, value in parts.items()}
    return StageShares(**shares, idle=1 - sum(shares.values()))


def decoding(cells: Sequence[Cell], stage: int) -> StageTime:
    """What is left of a stage's time without the prompts, whose time a token is known from the warm-up."""
    total: dict[str, float] = dict.fromkeys(StageTimings.__struct_fields__, 0.0)
    frames = 0
    for cell in cells:
        if cell.counters is None or cell.prefill is None:
            continue
        prefill = asdict(cell.prefill[stage])
        prompts = sum(answer.computed for answer in cell.answers) / max(1, prefill["tokens"])
        for name, value in asdict(cell.counters.stages[stage]).items():
            total[name] += value - prompts * prefill[name]
        frames += cell.counters.stages[stage].frames - cell.prompt_frames
    return StageTime({name: max(0.0, value) for name, value in total.items()}, frames)


def cycle_parts(counters: Counters, slowest: StageTime) -> CycleParts | None:
    """The parts of a mean cycle; None where nothing was decoded."""
    cycles, rank = counters.stats.counts.cycles, counters.stats.rank
    if not cycles or not rank.decode_ns:
        return None

    def part(nanoseconds: float) -> float:
        return nanoseconds / cycles / _MS

    stage = {name: part(slowest.timings[f"{name}_ns"]) for name in _PARTS}
    return CycleParts(
        **stage,
        wait=max(0.0, part(rank.decode_ns) - sum(stage.values())),
        announce=part(rank.announce_ns),
        commit=part(rank.commit_ns),
        draft=part(counters.stats.draft_ns),
    )

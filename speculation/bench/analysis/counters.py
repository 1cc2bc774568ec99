"""The engine's cumulative figures as /metrics shows them, and what changed between two looks. Pure."""

from typing import TypeVar

import msgspec
from msgspec.structs import asdict
from prometheus_client.parser import text_string_to_metric_families

from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError
from workers.shared.messages import HIT_RANKS, RankTimings, SpeculationCounts, StageTimings

_NS = 1e9
_PREFIX = "echelon:"
_Timings = TypeVar("_Timings", StageTimings, RankTimings)
_STAGE_FIELDS = ("idle", "receive", "forward", "sample", "emulate", "send")


class Counters(msgspec.Struct):
    """Cumulative, or the difference of two of them."""

    counts: SpeculationCounts
    full_cycles: int
    full_cycle_ns: int
    drafts: int  # asked for
    draft_ns: int
    stages: list[StageTimings]
    rank: RankTimings

    def since(self, earlier: "Counters") -> "Counters":
        """What has been added since `earlier`, of the same engine; raises `ConfigError` where it was restarted."""
        if len(self.stages) != len(earlier.stages) or self.counts.cycles < earlier.counts.cycles:
            raise ConfigError("an engine was restarted while it was measured; see its log in the output folder")
        return Counters(
            counts=_counts_since(self.counts, earlier.counts),
            full_cycles=self.full_cycles - earlier.full_cycles,
            full_cycle_ns=self.full_cycle_ns - earlier.full_cycle_ns,
            drafts=self.drafts - earlier.drafts,
            draft_ns=self.draft_ns - earlier.draft_ns,
            stages=[_summed(new, old, -1) for new, old in zip(self.stages, earlier.stages, strict=True)],
            rank=_summed(self.rank, earlier.rank, -1),
        )

    def plus(self, other: "Counters") -> "Counters":
        """Both together; they come from engines with the same stages."""
        counts = SpeculationCounts()
        counts.add(self.counts)
        counts.add(other.counts)
        return Counters(
            counts=counts,
            full_cycles=self.full_cycles + other.full_cycles,
            full_cycle_ns=self.full_cycle_ns + other.full_cycle_ns,
            drafts=self.drafts + other.drafts,
            draft_ns=self.draft_ns + other.draft_ns,
            stages=[_summed(mine, others, 1) for mine, others in zip(self.stages, other.stages, strict=True)],
            rank=_summed(self.rank, other.rank, 1),
        )


class Snapshot(msgspec.Struct):
    """One look at /metrics."""

    running: int
    waiting: int
    counters: Counters
    rehearsal: bool
    emulated: Emulation
    split: str

    @property
    def idle_ns(self) -> int:
        """Idle time of all stages: grows with every ping that has been through all of them."""
        return sum(stage.idle_ns for stage in self.counters.stages)


def parse_metrics(text: str) -> Snapshot:
    """The figures in the text of /metrics; raises `ConfigError` naming the first series that is missing."""
    series: dict[str, float] = {}
    info: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(_PREFIX).removesuffix("_total")
            if name == "engine_info":
                info = dict(sample.labels)
            series["/".join([name, *(sample.labels[label] for label in sorted(sample.labels))])] = sample.value
    try:
        stages = [_stage(series, str(number)) for number in range(int(info["stages"]))]
        return Snapshot(
            running=int(series["num_requests_running"]),
            waiting=int(series["num_requests_waiting"]),
            counters=Counters(
                counts=_counts(series),
                full_cycles=int(series["full_cycles"]),
                full_cycle_ns=_ns(series["full_cycle_seconds"]),
                drafts=int(series["drafts"]),
                draft_ns=_ns(series["draft_seconds"]),
                stages=stages,
                rank=RankTimings(*(_ns(series[f"{name}_seconds"]) for name in ("decode", "commit", "announce"))),
            ),
            rehearsal=info["rehearsal"] == "true",
            emulated=Emulation(*(float(info[f"emulated_{name}"]) for name in Emulation.__struct_fields__)),
            split=info["split"],
        )
    except KeyError as error:
        raise ConfigError(f"/metrics has no {error.args[0]}") from error


def _counts(series: dict[str, float]) -> SpeculationCounts:
    names = ("drafted", "accepted", "rejected", "discarded", "cycles", "ranked")
    drafted, accepted, rejected, discarded, cycles, ranked = (int(series[f"speculation_{name}"]) for name in names)
    hits = [int(series[f"speculation_hits/{width}"]) for width in HIT_RANKS]
    bounded, bound = int(series["speculation_bounded"]), series["speculation_bound"]
    return SpeculationCounts(drafted, accepted, rejected, discarded, cycles, ranked, hits, bounded, bound)


def _stage(series: dict[str, float], stage: str) -> StageTimings:
    # Labels are in alphabetical order: outcome or phase, then stage.
    frames, skipped = (int(series[f"stage_frames/{outcome}/{stage}"]) for outcome in ("computed", "skipped"))
    idle, receive, forward, sample, emulate, send = (
        _ns(series[f"stage_seconds/{phase}/{stage}"]) for phase in _STAGE_FIELDS
    )
    tokens = int(series[f"stage_tokens/{stage}"])
    return StageTimings(frames, skipped, tokens, idle, receive, forward, sample, emulate, send)


def _ns(seconds: float) -> int:
    return round(seconds * _NS)


def _counts_since(new: SpeculationCounts, old: SpeculationCounts) -> SpeculationCounts:
    return SpeculationCounts(
        drafted=new.drafted - old.drafted,
        accepted=new.accepted - old.accepted,
        rejected=new.rejected - old.rejected,
        discarded=new.discarded - old.discarded,
        cycles=new.cycles - old.cycles,
        ranked=new.ranked - old.ranked,
        hits=[later - earlier for later, earlier in zip(new.hits, old.hits, strict=True)],
        bounded=new.bounded - old.bounded,
        bound=new.bound - old.bound,
    )


def _summed(mine: _Timings, others: _Timings, sign: int) -> _Timings:
    """Field by field, `mine + sign * others`."""
    terms = asdict(others)
    return type(mine)(**{name: value + sign * terms[name] for name, value in asdict(mine).items()})

"""Measurements made by hand."""

from speculation.bench.analysis.cells import Answer, Cell, CellKey
from speculation.bench.analysis.counters import Counters
from speculation.bench.configuration import Contender
from workers.shared.emulation import Emulation
from workers.shared.messages import EngineStats, RankTimings, SpeculationCounts, StageTimings

MS = 1_000_000  # ns


def answer(question: str, tokens: list[int], first_ms: int = 100, gap_ms: int = 10) -> Answer:
    """Tokens that arrive at a steady pace after a prompt of three tokens."""
    times = [1000 * (first_ms + gap_ms * place) for place in range(len(tokens))]
    return Answer(question, [1, 2, 3], tokens, times)


def counters(
    *, accepted: int = 0, rejected: int = 0, discarded: int = 0, cycles: int = 0, stages: list[StageTimings]
) -> Counters:
    """Figures in which every verified draft was ranked, and the first candidate was right where it was accepted."""
    verified = accepted + rejected
    counts = SpeculationCounts(
        drafted=verified + discarded,
        levels=verified + discarded,
        accepted=accepted,
        rejected=rejected,
        discarded=discarded,
        cycles=cycles,
        ranked=verified,
        hits=[accepted, accepted, verified, verified, verified],
    )
    stats = EngineStats(
        counts,
        full_cycles=10,
        full_cycle_ns=120 * MS,
        drafts=verified,
        draft_ns=2 * verified * MS,
        rank=RankTimings(decode_ns=20 * cycles * MS, commit_ns=cycles * MS, announce_ns=3 * cycles * MS),
    )
    return Counters(stats, stages)


def cell(
    method: str,
    stages: int,
    answers: list[Answer],
    *,
    dataset: str = "one",
    temperature: float = 0.0,
    repeat: int = 0,
    counted: Counters | None = None,
    prefill: list[StageTimings] | None = None,
    energy_mj: int | None = None,
    devices: int | None = None,
    beside: list[Contender] | None = None,
    rehearsal: bool = False,
    near_ties: list[str] | None = None,
) -> Cell:
    """A cell of `method`."""
    return Cell(
        key=CellKey(Contender(method, stages), temperature, dataset, repeat),
        answers=answers,
        counters=counted,
        prefill=prefill,
        prompt_frames=len(answers),
        devices=stages if devices is None else devices,
        energy_mj=energy_mj,
        beside=beside or [],
        rehearsal=rehearsal,
        emulated=Emulation(),
        split="8,8",
        date="2026-01-01T00:00:00+00:00",
        git="0" * 40,
        near_ties=near_ties or [],
        load=0.0,
    )

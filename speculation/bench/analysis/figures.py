"""From cells to the figures of the table (docs/benchmarks.md defines each). Pure."""

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from statistics import median

import msgspec

from speculation.bench.analysis.breakdown import CycleParts, StageShares, cycle_parts, decoding, stage_shares
from speculation.bench.analysis.cells import Answer, Cell
from speculation.bench.analysis.counters import Counters
from speculation.bench.analysis.identity import Difference, differences
from speculation.bench.configuration import HUGGING_FACE, NONE, SINGLE, Contender
from workers.shared.emulation import Emulation
from workers.shared.messages import HIT_RANKS

ALL = "all"  # the data sets together


class TableRow(msgspec.Struct):
    """One line of the table; None where a figure does not exist for the method."""

    method: str
    stages: int
    temperature: float
    dataset: str
    prompts: int  # over all repeats
    tokens: int
    cached_prompt_tokens: int  # of all prompts: not computed again, as a slot still held them
    repeats: int
    tokens_per_second: float  # tokens after the first / time after the first; median of the repeats
    tokens_per_second_least: float
    tokens_per_second_most: float
    ttft_ms: float  # median
    inter_token_ms_p50: float
    inter_token_ms_p99: float
    devices: int
    tokens_per_second_per_device: float
    engine_tokens_per_second: float | None = None  # by the engine's own clock
    joules_per_token: float | None = None
    acceptance: float | None = None  # of verified drafts
    acceptance_bound: float | None = None  # sum min(p, q), over drafts of sampled tokens whose q is known
    coverage: float | None = None  # share of tokens for which there was a draft
    tokens_per_cycle: float | None = None
    E: float | None = None
    hit_at: dict[str, float] | None = None
    drafted: int | None = None
    discarded: int | None = None
    cycle_ms: float | None = None
    stage_ms: float | None = None  # the slowest stage's time for a frame
    draft_ms: float | None = None  # a draft, on the speculation rank
    fixed_cost_ms: float | None = None  # the cycle beyond the slower of stage and draft
    cycle_parts: CycleParts | None = None
    stage_shares: list[StageShares] | None = None
    speedup_none: float | None = None  # same stages
    speedup_single: float | None = None
    speedup_hf: float | None = None
    split: str = ""
    emulated: Emulation = Emulation()
    rehearsal: bool = False
    interleaved: bool = True  # prompt by prompt with every other pipeline of the same stages
    differing: int = 0  # answers that are not those of the reference
    near_ties: int = 0  # of these, such as frames of several tokens may bring about
    error: str | None = None


def rows(cells: Sequence[Cell]) -> list[TableRow]:
    """A row for each contender, temperature and data set, and one for all data sets where there are several."""
    groups: dict[tuple[Contender, float, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.key.contender, cell.key.temperature, cell.key.dataset), []).append(cell)
        groups.setdefault((cell.key.contender, cell.key.temperature, ALL), []).append(cell)
    pipelines = _pipelines(cells)
    made = [
        _row(group, dataset, pipelines)
        for (_, _, dataset), group in groups.items()
        if dataset != ALL or len({cell.key.dataset for cell in group}) > 1
    ]
    made.sort(key=lambda row: (row.temperature, row.dataset == ALL, row.dataset, row.stages, row.method))
    _add_speedups(made)
    _add_differences(made, differences(cells))
    return made


def _pipelines(cells: Sequence[Cell]) -> dict[int, set[Contender]]:
    """The contenders with a pipeline, by number of stages."""
    found: dict[int, set[Contender]] = {}
    for cell in cells:
        if not cell.key.contender.how.one_device:
            found.setdefault(cell.key.contender.stages, set()).add(cell.key.contender)
    return found


def _interleaved(cell: Cell, pipelines: dict[int, set[Contender]]) -> bool:
    """Whether it took turns with all pipelines of its number of stages; one device, with those of any number."""
    together = {cell.key.contender, *cell.beside}
    if cell.key.contender.how.one_device:
        return not pipelines or any(pipeline <= together for pipeline in pipelines.values())
    return pipelines[cell.key.contender.stages] <= together


def _row(cells: Sequence[Cell], dataset: str, pipelines: dict[int, set[Contender]]) -> TableRow:
    answers = [answer for cell in cells for answer in cell.answers]
    repeats = sorted({cell.key.repeat for cell in cells})
    speeds = [tokens_per_second([a for c in cells if c.key.repeat == repeat for a in c.answers]) for repeat in repeats]
    gaps = sorted(gap / 1000 for answer in answers for gap in _gaps(answer))
    contender = cells[0].key.contender
    speed, tokens = median(speeds), sum(len(answer.tokens) for answer in answers)
    energy = [cell.energy_mj for cell in cells if cell.energy_mj is not None]
    row = TableRow(
        method=contender.method,
        stages=contender.stages,
        temperature=cells[0].key.temperature,
        dataset=dataset,
        prompts=len(answers),
        tokens=tokens,
        cached_prompt_tokens=sum(answer.cached for answer in answers),
        repeats=len(repeats),
        tokens_per_second=speed,
        tokens_per_second_least=min(speeds),
        tokens_per_second_most=max(speeds),
        ttft_ms=median(answer.times_us[0] for answer in answers) / 1000,
        inter_token_ms_p50=percentile(gaps, 0.5),
        inter_token_ms_p99=percentile(gaps, 0.99),
        devices=cells[0].devices,
        tokens_per_second_per_device=speed / cells[0].devices,
        joules_per_token=sum(energy) / 1000 / tokens if len(energy) == len(cells) else None,
        split=cells[0].split,
        emulated=cells[0].emulated,
        rehearsal=any(cell.rehearsal for cell in cells),
        interleaved=all(_interleaved(cell, pipelines) for cell in cells),
    )
    counted = [cell.counters for cell in cells if cell.counters is not None]
    if counted:
        _add_engine_figures(row, reduce(Counters.plus, counted), cells, answers)
    return row


def _add_engine_figures(row: TableRow, counters: Counters, cells: Sequence[Cell], answers: Sequence[Answer]) -> None:
    stats, counts = counters.stats, counters.stats.counts
    verified = counts.accepted + counts.rejected
    if verified:
        row.acceptance = counts.accepted / verified
        row.coverage = verified / max(1, row.tokens - len(answers))
    if counts.bounded:
        row.acceptance_bound = counts.bound / counts.bounded
    if counts.cycles:
        # The first token of an answer is the prefill's.
        row.tokens_per_cycle = (row.tokens - len(answers)) / counts.cycles
        row.E = row.stages * row.tokens_per_cycle
    if counts.ranked:
        row.hit_at = {str(width): hits / counts.ranked for width, hits in zip(HIT_RANKS, counts.hits, strict=True)}
    row.drafted, row.discarded = counts.drafted, counts.discarded
    if counts.drafted != verified + counts.discarded:
        row.error = f"{counts.drafted} drafts, but {verified} verified and {counts.discarded} discarded"
    active_ns = 1000 * sum(answer.times_us[-1] for answer in answers)
    row.stage_shares = [stage_shares(timings, active_ns) for timings in counters.stages]
    slowest = max((decoding(cells, stage) for stage in range(len(counters.stages))), key=lambda stage: stage.frame_ms)
    row.stage_ms = slowest.frame_ms
    row.cycle_parts = cycle_parts(counters, slowest)
    if stats.rank.decode_ns:
        row.engine_tokens_per_second = (row.tokens - len(answers)) / stats.rank.decode_ns * 1e9
    if stats.drafts:
        row.draft_ms = stats.draft_ns / stats.drafts / 1e6
    if stats.full_cycles:
        row.cycle_ms = stats.full_cycle_ns / stats.full_cycles / 1e6
        row.fixed_cost_ms = row.cycle_ms - max(row.stage_ms, row.draft_ms or 0.0)


def tokens_per_second(answers: Sequence[Answer]) -> float:
    """Tokens after the first, over the time after the first; 0 where no answer has two tokens."""
    seconds = sum(answer.times_us[-1] - answer.times_us[0] for answer in answers) / 1e6
    return sum(len(answer.tokens) - 1 for answer in answers) / seconds if seconds > 0 else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the `ordered` values do not exceed; 0 where there are none."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else 0.0


def _gaps(answer: Answer) -> list[int]:
    return [later - earlier for earlier, later in pairwise(answer.times_us)]


def _add_speedups(made: Sequence[TableRow]) -> None:
    speeds = {(row.method, row.stages, row.temperature, row.dataset): row.tokens_per_second for row in made}
    for row in made:
        place = (row.temperature, row.dataset)
        row.speedup_none = _ratio(row.tokens_per_second, speeds.get((NONE, row.stages, *place)))
        row.speedup_single = _ratio(row.tokens_per_second, speeds.get((SINGLE, 1, *place)))
        row.speedup_hf = _ratio(row.tokens_per_second, speeds.get((HUGGING_FACE, 1, *place)))


def _ratio(speed: float, baseline: float | None) -> float | None:
    return speed / baseline if baseline else None


def _add_differences(made: Sequence[TableRow], found: Sequence[Difference]) -> None:
    for row in made:
        here = [
            difference
            for difference in found
            if difference.contender == Contender(row.method, row.stages)
            and difference.temperature == row.temperature
            and row.dataset in (difference.dataset, ALL)
        ]
        row.differing = len(here)
        row.near_ties = sum(difference.near_tie for difference in here)
        if row.differing > row.near_ties:
            first = next(difference for difference in here if not difference.near_tie)
            where = "in the prompt" if first.position < 0 else f"at token {first.position}"
            row.error = (
                f"{row.differing - row.near_ties} of {row.prompts} answers differ from {first.reference}; "
                f"first: {first.dataset} {first.question} {where}"
            )

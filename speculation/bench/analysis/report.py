"""Rows as a Markdown table, and how they were made. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple

from speculation.bench.analysis.breakdown import CycleParts
from speculation.bench.analysis.figures import ALL, TableRow
from workers.shared.messages import HIT_RANKS

_WHERE = ("method", "n", "T", "data set")
_SPEED = (
    *_WHERE, "tok/s", "engine tok/s", "tok/s/device", "× none", "× single", "× HF", "TTFT ms", "p50 ms", "p99 ms",
    "acceptance", "bound", "coverage", "E", "J/token", "near-ties",
)  # fmt: skip
_CYCLE = (
    *_WHERE, "tok/cycle", "cycle ms", "stage ms", "draft ms", "fixed ms", "busy", "discarded",
    "forward", "head/sample", "asleep", "send", "receive", "wait", "announce", "commit", "draft",
)  # fmt: skip

_IDLE_LOAD = 0.5


class Provenance(msgspec.Struct, frozen=True):
    """What is needed to repeat a bench and to judge it."""

    command: str
    git: str
    date: str  # ISO 8601, UTC
    python: str
    versions: dict[str, str]
    cpu: str
    cores: int
    memory_gib: float
    gpus: list[str]
    load: float  # one-minute average before the start


class Results(msgspec.Struct):
    """`results.json`."""

    provenance: Provenance
    settings: dict[str, object]
    data: dict[str, str]  # SHA-256 of the prompts used, by data set
    commits: list[str]  # of the source tree, when the cells were measured
    load: float  # the highest load average before a bench that made some of the cells
    rows: list[TableRow]


def markdown(results: Results) -> str:
    """The table, its warnings, and hit rates where drafts were ranked."""
    rows, provenance = results.rows, results.provenance
    lines = [
        f"`{provenance.command}`",
        "",
        f"{provenance.cpu}, {provenance.cores} cores, {provenance.memory_gib:.0f} GiB"
        + "".join(f", {gpu}" for gpu in provenance.gpus)
        + f"; {provenance.date}; commit {provenance.git}",
        "",
        *_warnings(results),
        *_table(_SPEED, [_speed_cells(row) for row in rows]),
        "",
    ]
    counted = [row for row in rows if row.tokens_per_cycle is not None]
    if counted:
        lines += ["Where a cycle goes, milliseconds: its slowest stage from forward to wait, then rank 0:", ""]
        lines += [*_table(_CYCLE, [_cycle_cells(row) for row in counted]), ""]
    ranked = [row for row in rows if row.hit_at is not None]
    if ranked:
        header = (*_WHERE, *(f"hit@{width}" for width in HIT_RANKS))
        lines += ["Share of verified tokens among the drafter's first candidates:", ""]
        lines += _table(header, [_hit_cells(row) for row in ranked])
        lines.append("")
    return "\n".join(lines)


def _warnings(results: Results) -> list[str]:
    rows = results.rows
    warnings = [
        f"**{row.method}, n={row.stages}, T={row.temperature:g}, {row.dataset}: {row.error}**"
        for row in rows
        if row.error
    ]
    for emulated in dict.fromkeys(row.emulated for row in rows if row.emulated):
        warnings.append(f"**Emulated** ({emulated}): times pass asleep; this measures orchestration only.")
    if any(row.rehearsal for row in rows):
        warnings.append("**Rehearsal**: `scripted` accepts drafts by chance, so its text means nothing.")
    if any(row.near_ties for row in rows):
        warnings.append("Near-ties: answers of draft-then-verify that turn off where two tokens are about as likely.")
    if any(not row.interleaved for row in rows):
        names = sorted({f"{row.method}, n={row.stages}" for row in rows if not row.interleaved})
        warnings.append(f"Not measured prompt by prompt beside all pipelines of the same stages: {'; '.join(names)}.")
    if results.load > _IDLE_LOAD:
        warnings.append(f"The machine was not idle: its load average was {results.load:.1f} at the start.")
    if len(results.commits) > 1:
        warnings.append(f"Measured with several commits: {', '.join(results.commits)}.")
    return [line for warning in warnings for line in (warning, "")]


def _where(row: TableRow) -> list[str]:
    name = row.method + (" (rehearsal)" if row.rehearsal else "") + (" (emulated)" if row.emulated else "")
    return [name, str(row.stages), f"{row.temperature:g}", f"**{ALL}**" if row.dataset == ALL else row.dataset]


def _speed_cells(row: TableRow) -> list[str]:
    speed = f"{row.tokens_per_second:.1f}"
    if row.repeats > 1:
        speed += f" ({row.tokens_per_second_least:.1f}..{row.tokens_per_second_most:.1f})"
    return [
        *_where(row),
        speed,
        _number(row.engine_tokens_per_second, 1),
        _number(row.tokens_per_second_per_device, 1),
        _number(row.speedup_none),
        _number(row.speedup_single),
        _number(row.speedup_hf),
        _number(row.ttft_ms, 0),
        _number(row.inter_token_ms_p50, 1),
        _number(row.inter_token_ms_p99, 1),
        _number(row.acceptance, 3),
        _number(row.acceptance_bound, 3),
        _number(row.coverage),
        _number(row.E),
        _number(row.joules_per_token),
        str(row.near_ties or "–"),
    ]


def _cycle_cells(row: TableRow) -> list[str]:
    busy = None if row.stage_shares is None else sum(s.busy for s in row.stage_shares) / len(row.stage_shares)
    discarded = row.discarded / row.drafted if row.discarded is not None and row.drafted else None
    parts = [None] * len(CycleParts.__struct_fields__) if row.cycle_parts is None else astuple(row.cycle_parts)
    return [
        *_where(row),
        _number(row.tokens_per_cycle, 3),
        _number(row.cycle_ms),
        _number(row.stage_ms),
        _number(row.draft_ms),
        _number(row.fixed_cost_ms),
        _number(busy),
        _number(discarded),
        *(_number(part) for part in parts),
    ]


def _hit_cells(row: TableRow) -> list[str]:
    assert row.hit_at is not None
    return [*_where(row), *(_number(row.hit_at[str(width)], 3) for width in HIT_RANKS)]


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *body]
    return [f"| {' | '.join(line)} |" for line in lines]

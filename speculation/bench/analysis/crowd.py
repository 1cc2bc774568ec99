"""Figures of answers that were asked for at once. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from speculation.bench.analysis.cells import Answer
from speculation.bench.analysis.report import Provenance
from speculation.bench.configuration import Contender

_HEADER = (
    "| method | streams | tok/s in sum | × one stream | slowest / mean | first token, median / last ms | "
    "between tokens, p50 / p99 ms |\n| --- | --- | --- | --- | --- | --- | --- |\n"
)


class CrowdRow(msgspec.Struct, frozen=True):
    """So many streams at once, of one contender; of several rounds together."""

    contender: Contender
    streams: int
    tokens_per_second: float  # of all streams, from the first token of any to the last of all
    slowest: float  # tokens a second of the slowest stream, over the mean of all
    first_ms: tuple[float, float]  # from the request to the first token: median, and the longest
    between_ms: tuple[float, float]  # between two tokens of a stream: median, and 99th percentile


class Crowds(msgspec.Struct, frozen=True):
    """All rows, and how they were made."""

    provenance: Provenance
    settings: dict[str, Any]
    data: dict[str, str]  # digests of the data sets, by name
    rows: Sequence[CrowdRow]


def crowd_row(contender: Contender, rounds: Sequence[Sequence[Answer]]) -> CrowdRow:
    """Of rounds of as many answers each, of at least two tokens, whose requests were sent at one moment."""
    answers = [answer for answers in rounds for answer in answers]
    between = sorted((later - earlier) / 1000 for answer in answers for earlier, later in pairwise(answer.times_us))
    first = sorted(answer.times_us[0] / 1000 for answer in answers)
    return CrowdRow(
        contender,
        len(rounds[0]),
        sum(map(_total, rounds)) / len(rounds),
        sum(map(_slowest, rounds)) / len(rounds),
        (_share(first, 0.5), first[-1]),
        (_share(between, 0.5), _share(between, 0.99)),
    )


def crowd_table(rows: Sequence[CrowdRow]) -> str:
    """Markdown; `× one stream` is against the same contender with the fewest streams, which is one after the other."""
    alone: dict[Contender, CrowdRow] = {}
    for row in sorted(rows, key=lambda row: row.streams):
        alone.setdefault(row.contender, row)
    return _HEADER + "".join(_line(row, alone[row.contender]) for row in rows)


def _line(row: CrowdRow, alone: CrowdRow) -> str:
    gain = row.tokens_per_second / alone.tokens_per_second
    first, between = (f"{low:.1f} / {high:.1f}" for low, high in (row.first_ms, row.between_ms))
    return (
        f"| {row.contender} | {row.streams} | {row.tokens_per_second:.1f} | {gain:.2f} | {row.slowest:.2f} | {first} | "
        f"{between} |\n"
    )


def _total(answers: Sequence[Answer]) -> float:
    begin = min(answer.times_us[0] for answer in answers)
    end = max(answer.times_us[-1] for answer in answers)
    return 1e6 * sum(len(answer.times_us) - 1 for answer in answers) / (end - begin)


def _slowest(answers: Sequence[Answer]) -> float:
    rates = [(len(answer.times_us) - 1) / (answer.times_us[-1] - answer.times_us[0]) for answer in answers]
    return min(rates) * len(rates) / sum(rates)


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]

"""Figures of streams side by side, by hand."""

import pytest

from speculation.bench.analysis.cells import Answer
from speculation.bench.analysis.crowd import crowd_row, crowd_table
from speculation.bench.configuration import Contender

NONE = Contender("none", 2)


def answer(*times_ms: int) -> Answer:
    return Answer("q", [1], list(range(len(times_ms))), [1000 * time for time in times_ms])


def test_streams_together_and_the_slowest_of_them() -> None:
    row = crowd_row(NONE, [[answer(10, 20, 30, 40), answer(20, 40, 60, 80)]])
    assert row.streams == 2
    assert row.tokens_per_second == pytest.approx(6 / 0.070)
    assert row.slowest == pytest.approx(50 / 75)
    assert row.first_ms == (10, 20)
    assert row.between_ms == (10, 20)


def test_rounds_are_put_together() -> None:
    row = crowd_row(NONE, [[answer(0, 10)], [answer(0, 30)]])
    assert row.tokens_per_second == pytest.approx((100 + 100 / 3) / 2)
    assert row.slowest == 1


def test_the_table_compares_with_one_stream_of_the_same_contender() -> None:
    rows = [crowd_row(one, [[answer(0, 10)] * count]) for one in (NONE, Contender("hf", 1)) for count in (1, 4)]
    lines = crowd_table(rows).splitlines()[2:]
    assert [line.split(" | ")[:4] for line in lines] == [
        ["| none, n=2", "1", "100.0", "1.00"],
        ["| none, n=2", "4", "400.0", "4.00"],
        ["| hf", "1", "100.0", "1.00"],
        ["| hf", "4", "400.0", "4.00"],
    ]

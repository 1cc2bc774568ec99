"""The table of cycle costs: its points, its ideals, its lines."""

import pytest

from speculation.bench.analysis.figures import rows
from speculation.bench.configuration import serve_arguments
from speculation.bench.cycle_cost.bare import Bare
from speculation.bench.cycle_cost.point import MeasuredPoint, Point, points
from speculation.bench.cycle_cost.processor_time import per_token, role_of
from speculation.bench.cycle_cost.table import HEADER, bare_line, line
from tests.unit.bench.bench_cells import MS, answer, cell, counters
from workers.shared.messages import StageTimings


def test_every_stage_time_has_its_baseline_and_every_combination() -> None:
    made = points(8, [5.0, 1.0], [1.0, 0.8], [0, 1])
    assert len(made) == 10
    assert [point for point in made if point.acceptance is None] == [Point(8, 5.0, None, 0), Point(8, 1.0, None, 0)]
    assert len(set(made)) == 10


def test_settings_fit_their_method() -> None:
    plain, scripted = Point(8, 5.0, None, 0), Point(8, 5.0, 0.8, 1)
    assert (plain.contender.method, plain.settings(9).engine.drafter.scripted_acceptance) == ("none", None)
    assert (scripted.contender.method, scripted.settings(9).engine.drafter.scripted_acceptance) == ("scripted", 0.8)
    assert scripted.settings(9).ignore_eos
    hollow = Point(8, 5.0, 1.0, 0, hollow=True)
    for point, found in ((scripted, False), (hollow, True)):
        assert ("--hollow-stages" in serve_arguments(point.contender, point.settings(9), None)) == found


def test_ideals_are_those_of_the_issue() -> None:
    point = Point(8, 5.0, 1.0, 0)
    assert point.ideal(None) == pytest.approx(25)
    assert point.ideal(1.0) == pytest.approx(200)
    assert point.ideal(0.8) == pytest.approx(200 / 2.4)
    assert Point(8, 5.0, 1.0, 0, drafts=4).ideal(1.0) == pytest.approx(25 * 5)
    assert Point(8, 5.0, 1.0, 0, width=4, row_cost=(1.0, 1.1, 1.25)).ideal(1.0) == pytest.approx(200 * 4 / 1.25)


def test_a_line_tells_where_the_time_goes() -> None:
    stage = StageTimings(frames=10, tokens=10, forward_ns=10 * MS, emulate_ns=40 * MS, send_ns=5 * MS)
    counted = counters(accepted=9, cycles=10, stages=[stage, stage])
    (row,) = rows(
        [cell("scripted", 2, [answer("0", list(range(11)), first_ms=0)], counted=counted, prefill=[StageTimings()] * 2)]
    )
    point = Point(2, 5.0, 1.0, 0)
    told = line(point, MeasuredPoint(row, {"stage": 0.2, "API": 0.25}), Bare(160.0, 0.1))
    assert told == [
        "2", "5", "scripted", "1.000", "0", "1", "1.000", "1.000", "100.0", "200.0", "50.0 %", "62.5 %", "12.000",
        "7.000", "0.200", "–", "–", "0.250", "10.0 %", "40.0 %", "5.0 %", "0.0 %", "45.0 %",
    ]  # fmt: skip
    assert len(told) == len(bare_line(point, Bare(160.0, 0.1))) == len(HEADER)


def test_the_yardstick_is_for_what_leaves_nothing_to_chance() -> None:
    assert Point(8, 5.0, None, 0).in_flight == 1
    assert Point(8, 5.0, 1.0, 1).in_flight == 9
    assert Point(8, 5.0, 0.8, 1).in_flight is Point(8, 5.0, 1.0, 0, drafts=4).in_flight is None


def test_processor_time_is_told_by_role() -> None:
    commands = {
        "python -m speculation --config x": "rank 0",
        "python -m server --settings x": "API",
        "python -m server.cli serve": None,
        "python -m workers --stage 0 --config x": "stage",
        "python -m workers --stage 7 --config x": "last stage",
        "python -m": None,
    }
    assert {command: role_of(command.split(), 8) for command in commands} == commands
    assert per_token({"stage": 1.0, "API": 0.5}, {"stage": 1.5, "rank 0": 2.0, "API": 0.5}, 100) == {
        "stage": 5.0,
        "API": 0.0,
    }

"""The costs that a machine's runs were made with are found again."""

from dataclasses import replace

import pytest

from speculation.bench.validate import grid, report
from speculation.simulate.fit import Costs, Run, error, fit, predict


def made_with(costs: Costs, tokens: int) -> list[Run]:
    runs = [
        Run(stages, stage_ms, delta, acceptance, 1.0)
        for stages, stage_ms, delta, acceptance in (
            (2, 5.0, 0, None),
            (4, 2.0, 0, 1.0),
            (4, 2.0, 1, 1.0),
            (4, 5.0, 0, 0.8),
            (6, 2.0, 1, 0.8),
        )
    ]
    runs.append(Run(4, 5.0, 0, 0.8, 1.0, drafts=4))
    return [replace(run, tokens_per_second=predict(run, costs, tokens)) for run in runs]


def test_costs_are_found_again() -> None:
    costs = Costs(control_ms=0.05, commit_ms=0.2, overhead_ms=0.15)
    runs = made_with(costs, 30)
    assert fit(runs, tokens=30) == costs
    assert all(abs(error(run, costs, 30)) < 1e-9 for run in runs)


def test_an_acceptance_that_came_out_otherwise_is_corrected_for() -> None:
    costs = Costs(0.0, 0.0, 0.0)
    run = Run(8, 5.0, 0, 0.8, 1000 / 5 / (1 + 7 * 0.2))
    assert error(run, costs, tokens=300) == pytest.approx(0, abs=0.02)


def test_nothing_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="runs"):
        fit([])


def test_the_grid_has_the_points_that_are_asked_for_and_the_report_those_held_out() -> None:
    assert len(set(grid())) == 51
    assert sum(point.contender.how.rounds for point in grid()) == 9
    costs = Costs(0.05, 0.1, 0.1)
    text = report(made_with(costs, 100), costs, tokens=100)
    assert "4 of 4 predictions are within 5 %" in text
    assert text.count("| 4 | 2 |") == 2

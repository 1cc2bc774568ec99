"""Finds what orchestration costs on a machine, from runs with emulated stages. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from speculation.simulate.events import simulate
from speculation.simulate.pipeline import Pipeline
from speculation.simulate.rounds import tokens_per_cycle

_TOKENS = 200
_CONTROL_MS = (0.02, 0.05, 0.1, 0.2)
_COMMIT_MS = (0.05, 0.1, 0.2, 0.4)
_OVERHEAD_MS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Costs:
    """Of `speculation.simulate.pipeline.Pipeline`, milliseconds."""

    control_ms: float
    commit_ms: float
    overhead_ms: float


@dataclass(frozen=True)
class Run:
    """One emulated run."""

    stages: int
    stage_ms: float
    delta: int
    acceptance: float | None  # as it came out; None without drafts
    tokens_per_second: float
    drafts: int = 0  # a frame, of draft-then-verify

    def law(self, acceptance: float) -> float:
        """Tokens per cycle if nothing but the stages took time."""
        return tokens_per_cycle(self.stages, acceptance, self.drafts)


def predict(run: Run, costs: Costs, tokens: int = _TOKENS) -> float:
    """Tokens/s of the run, by simulation.

    The simulated acceptance is random too; the law takes out how far it is from the run's.
    """
    pipeline = Pipeline(
        stage_ms=(run.stage_ms,) * run.stages,
        overhead_ms=costs.overhead_ms,
        hop_ms=costs.control_ms,  # both are ZeroMQ messages of a few kilobytes at most
        control_ms=costs.control_ms,
        commit_ms=costs.commit_ms,
    )
    got = simulate(pipeline, run.acceptance, delta=run.delta, drafts=run.drafts, tokens=tokens)
    if run.acceptance is None:
        return got.tokens_per_second
    return got.tokens_per_second * run.law(run.acceptance) / run.law(got.acceptance)


def error(run: Run, costs: Costs, tokens: int = _TOKENS) -> float:
    """Predicted over measured tokens/s, minus 1."""
    return predict(run, costs, tokens) / run.tokens_per_second - 1


def fit(runs: Sequence[Run], tokens: int = _TOKENS) -> Costs:
    """The costs with the least squared error over `runs`, which must not be empty."""
    if not runs:
        raise ValueError("runs: at least one is needed to fit costs to")
    candidates = [Costs(*values) for values in product(_CONTROL_MS, _COMMIT_MS, _OVERHEAD_MS)]
    return min(candidates, key=lambda costs: sum(error(run, costs, tokens) ** 2 for run in runs))

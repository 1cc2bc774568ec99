"""The schedule against plain autoregressive decoding: any n, delta, acceptance, delays, reorderings and aborts."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.schedule import Schedule
from tests.unit.pipeline_sim import VOCABULARY, PipelineSim, Request, plain, target
from workers.errors import OutOfStep
from workers.messages import Rollback, Sample, SpeculationCounts

requests = st.builds(
    Request,
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=23),
    max_tokens=st.integers(1, 30),
    stop_tokens=st.lists(st.integers(0, VOCABULARY - 1), max_size=3).map(tuple),
    abort_after=st.none() | st.floats(0, 40),
)


def check(counts: SpeculationCounts) -> None:
    assert counts.drafted == counts.accepted + counts.rejected + counts.discarded


@settings(max_examples=400, deadline=None)
@given(
    stages=st.integers(1, 9),
    delta=st.integers(0, 2),
    chunk=st.integers(1, 9),
    acceptance=st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.95, 1.0]),
    jitter=st.sampled_from([0.0, 0.3, 0.9]),
    control=st.sampled_from([0.0, 0.01, 0.3, 2.0]),
    draft_time=st.sampled_from([0.0, 0.1, 0.8, 1.5]),
    seed=st.integers(0, 2**32),
    batch=st.lists(requests, min_size=1, max_size=4),
)
def test_output_is_that_of_plain_decoding(
    stages: int,
    delta: int,
    chunk: int,
    acceptance: float,
    jitter: float,
    control: float,
    draft_time: float,
    seed: int,
    batch: list[Request],
) -> None:
    sim = PipelineSim(
        stages,
        delta,
        chunk,
        acceptance=acceptance,
        rng=random.Random(seed),
        jitter=jitter,
        control=control,
        draft_time=draft_time,
    )
    for request, outcome in zip(batch, sim.run(batch), strict=True):
        expected = plain(request.prompt, request.max_tokens, request.stop_tokens)
        if outcome.finish == "abort":
            assert request.abort_after is not None
            assert outcome.tokens == expected[: len(outcome.tokens)]
        else:
            assert outcome.tokens == expected
            assert outcome.finish == ("stop" if expected[-1] in request.stop_tokens else "length")
    check(sim.schedule.counts)


@settings(max_examples=100, deadline=None)
@given(stages=st.integers(2, 6), wrong=st.sets(st.integers(4, 31)), seed=st.integers(0, 2**32))
def test_a_rejection_at_any_position_costs_its_refill_and_nothing_else(stages: int, wrong: set[int], seed: int) -> None:
    # Position 3 is the prefill's token; 31 is the last position whose draft can still matter.
    sim = PipelineSim(stages, acceptance=lambda position: position not in wrong, rng=random.Random(seed), control=0.0)
    (outcome,) = sim.run([Request([1, 2, 3], 30)])
    assert outcome.tokens == plain([1, 2, 3], 30)
    assert sim.schedule.counts.rejected == len(wrong)
    assert sim.schedule.counts.cycles == 29 + (stages - 1) * (len(wrong) + 1)
    check(sim.schedule.counts)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("acceptance", [0.0, 0.6, 0.8, 0.9, 1.0])
def test_tokens_per_cycle_follow_the_speed_law(stages: int, acceptance: float) -> None:
    sim = PipelineSim(stages, acceptance=acceptance, rng=random.Random(7), control=0.0, draft_time=0.8)
    new = 4000
    (outcome,) = sim.run([Request([1, 2, 3], new)])
    counts = sim.schedule.counts
    measured = counts.accepted / (counts.accepted + counts.rejected)
    law = 1 / (1 + (stages - 1) * (1 - measured))
    assert (new - 1) / (outcome.last_at - outcome.first_at) == pytest.approx(law, rel=0.03)


def test_perfect_and_hopeless_drafters_take_the_cycles_of_the_paper() -> None:
    for stages in (2, 3, 5):
        for acceptance, cycles in ((1.0, 20 + stages - 2), (0.0, stages * 19)):
            sim = PipelineSim(stages, acceptance=acceptance, rng=random.Random(0), control=0.0)
            sim.run([Request([5], 20)])
            assert sim.schedule.counts.cycles == cycles


def test_dead_frames_are_mostly_not_computed() -> None:
    sim = PipelineSim(8, acceptance=0.5, rng=random.Random(3), control=0.01)
    sim.run([Request([1], 500)])
    assert sim.skipped > sim.computed / 10


def test_nothing_is_drafted_past_an_end_token_or_the_token_limit() -> None:
    stop = target([1, 2])
    for request in (Request([1, 2], 9, (stop,)), Request([1, 2], 1)):
        sim = PipelineSim(4, rng=random.Random(0))
        (outcome,) = sim.run([request])
        assert outcome.tokens == [stop]
        assert sim.schedule.counts.drafted == 0
        assert sim.schedule.counts.cycles == 0


def new_schedule() -> Schedule:
    return Schedule(0, 3, 0, 4, itertools.count())


def test_stale_samples_mean_nothing_and_misplaced_ones_are_fatal() -> None:
    schedule = new_schedule()
    schedule.start([1, 2], 5)
    assert schedule.sample(Sample(0, 7, 1, 9)).token is None
    with pytest.raises(OutOfStep, match="position 4"):
        schedule.sample(Sample(0, 0, 4, 9))


def test_a_sample_where_none_was_wanted_is_fatal() -> None:
    schedule = new_schedule()
    schedule.start([1, 2, 3, 4, 5], 5)
    with pytest.raises(OutOfStep):
        schedule.sample(Sample(0, 0, 3, 9))


def test_abort_raises_the_epoch_and_frees_the_slot() -> None:
    schedule = new_schedule()
    schedule.start([1, 2], 5)
    step = schedule.abort()
    assert list(step.control) == [Rollback(0, 1)]
    assert not schedule.running
    assert schedule.abort().control == ()
    (frame,) = schedule.start([3], 2).control
    assert not isinstance(frame, Rollback)
    assert (frame.epoch, frame.position) == (1, 0)


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 1), ([1], 0)])
def test_start_refuses_what_cannot_run(prompt: list[int], max_tokens: int) -> None:
    with pytest.raises(ValueError, match="start"):
        new_schedule().start(prompt, max_tokens)

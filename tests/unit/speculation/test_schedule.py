"""The schedule against plain autoregressive decoding: any n, policy, acceptance, delays, reorderings and aborts."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.decisions.drafts.tree import Shoot
from speculation.decisions.policy import FramePolicy, draft_then_verify, pipelined
from speculation.decisions.schedule import Schedule
from speculation.simulate.pipeline import speed_law
from tests.unit.speculation.pipeline_sim import VOCABULARY, PipelineSim, Request, plain, target
from workers.shared.errors import OutOfStep
from workers.shared.frames import Shape
from workers.shared.messages import Rollback, Sample, SpeculationCounts

requests = st.builds(
    Request,
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=23),
    max_tokens=st.integers(1, 30),
    stop_tokens=st.lists(st.integers(0, VOCABULARY - 1), max_size=3).map(tuple),
    abort_after=st.none() | st.floats(0, 40),
    generated=st.sampled_from([0, 0, 1, 5, 29]),
)


# The methods there are, and whatever else frames of several tokens in several stages may become.
chains = st.one_of(
    st.builds(pipelined, stages=st.integers(1, 9), delta=st.integers(0, 2), width=st.sampled_from([1, 1, 2, 4, 8])),
    st.builds(draft_then_verify, stages=st.integers(1, 9), drafts=st.integers(1, 8)),
    st.builds(
        FramePolicy,
        chunks=st.integers(1, 9),
        credits=st.integers(1, 5),
        shapes=st.tuples(st.builds(Shape, width=st.integers(1, 5))),
    ),
)


def broader(policy: FramePolicy, breadths: Sequence[int]) -> FramePolicy:
    """Frames of that policy, with so many drafts at each position; of several numbers, now one and now another.

    They are then of other widths, too.
    """
    widths = [policy.width, *((3, 1, 5)[: len(breadths) - 1])]
    return replace(policy, shapes=tuple(Shape(width, breadth) for width in widths for breadth in breadths))


policies = st.builds(broader, chains, st.sampled_from([[1], [1], [2], [3], [8], [1, 2], [1, 4], [2, 8, 1]]))


def draft(schedule: Schedule, *tokens: int) -> None:
    """Drafts behind the likeliest leaf."""
    schedule.grow([Shoot(schedule.leaves[0], token) for token in tokens])


def check(counts: SpeculationCounts) -> None:
    assert counts.drafted == counts.accepted + counts.rejected + counts.discarded


@settings(max_examples=150)
@given(
    stages=st.integers(1, 9),
    policy=policies,
    silence=st.sampled_from([0.0, 0.2, 1.0]),
    chunk=st.integers(1, 9),
    acceptance=st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.95, 1.0]),
    jitter=st.sampled_from([0.0, 0.3, 0.9]),
    control=st.sampled_from([0.0, 0.01, 0.3, 2.0]),
    draft_time=st.sampled_from([0.0, 0.1, 0.8, 1.5]),
    snapshots=st.sampled_from([None, 1, 3]),
    window=st.none() | st.integers(1, 12),
    seed=st.integers(0, 2**32),
    batch=st.lists(requests, min_size=1, max_size=4),
)
def test_output_is_that_of_plain_decoding(
    stages: int,
    policy: FramePolicy,
    silence: float,
    chunk: int,
    acceptance: float,
    jitter: float,
    control: float,
    draft_time: float,
    snapshots: int | None,
    window: int | None,
    seed: int,
    batch: list[Request],
) -> None:
    if snapshots is not None:
        policy = broader(policy, [1])
    sim = PipelineSim(
        stages,
        policy,
        chunk,
        acceptance=acceptance,
        rng=random.Random(seed),
        jitter=jitter,
        control=control,
        draft_time=draft_time,
        silence=silence,
        snapshots=snapshots,
        window=window,
        reuse=snapshots is not None or window is not None,
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


@given(stages=st.integers(2, 6), wrong=st.sets(st.integers(4, 31)), seed=st.integers(0, 2**32))
def test_a_rejection_at_any_position_costs_its_refill_and_nothing_else(stages: int, wrong: set[int], seed: int) -> None:
    # Position 3 is the prefill's token; 31 is the last position whose draft can still matter.
    acceptance = lambda position: position not in wrong  # noqa: E731
    sim = PipelineSim(stages, acceptance=acceptance, rng=random.Random(seed), control=0.0)
    (outcome,) = sim.run([Request([1, 2, 3], 30)])
    assert outcome.tokens == plain([1, 2, 3], 30)
    assert sim.schedule.counts.rejected == len(wrong)
    assert sim.schedule.counts.cycles == 29 + (stages - 1) * (len(wrong) + 1)
    check(sim.schedule.counts)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("acceptance", [0.0, 0.6, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_tokens_per_cycle_follow_the_speed_law(stages: int, acceptance: float, width: int) -> None:
    rng = random.Random(7)
    draft_time = 0.8 if width == 1 else 0.0
    policy = pipelined(stages, width=width)
    sim = PipelineSim(stages, policy, acceptance=acceptance, rng=rng, control=0.0, draft_time=draft_time)
    new = 200 if acceptance else 50  # where all are wrong, nothing is left to chance
    (outcome,) = sim.run([Request([1, 2, 3], new)])
    counts = sim.schedule.counts
    measured = counts.accepted / (counts.accepted + counts.rejected)
    elapsed = outcome.last_at - outcome.first_at - (stages - 1)  # filled once more than there were wrong drafts
    assert (new - 1) / elapsed == pytest.approx(speed_law(stages, measured, width), rel=0.05)
    assert (new - 1) / elapsed >= 0.97 / (stages * (1 - measured) + measured / width)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_frame_of_one_token_is_the_law_of_one_token_a_frame(stages: int) -> None:
    for acceptance in (0.0, 0.3, 0.8, 1.0):
        assert speed_law(stages, acceptance) == pytest.approx(1 / (1 + (stages - 1) * (1 - acceptance)))
        assert speed_law(stages, 1.0, 4) == 4


def test_perfect_and_hopeless_drafters_take_the_cycles_of_the_paper() -> None:
    for stages in (2, 3, 5):
        for acceptance, cycles in ((1.0, 20 + stages - 2), (0.0, stages * 19)):
            sim = PipelineSim(stages, acceptance=acceptance, rng=random.Random(0), control=0.0)
            sim.run([Request([5], 20)])
            assert sim.schedule.counts.cycles == cycles


@given(
    stages=st.integers(1, 6), drafts=st.integers(1, 8), wrong=st.sets(st.integers(4, 31)), seed=st.integers(0, 2**32)
)
def test_draft_then_verify_takes_the_rounds_of_the_textbook(
    stages: int, drafts: int, wrong: set[int], seed: int
) -> None:
    acceptance = lambda position: position not in wrong  # noqa: E731
    policy = draft_then_verify(stages, drafts)
    sim = PipelineSim(stages, policy, acceptance=acceptance, rng=random.Random(seed), control=0.0)
    (outcome,) = sim.run([Request([1, 2, 3], 30)])
    assert outcome.tokens == plain([1, 2, 3], 30)
    # A round that begins with `known` tokens drafts the positions known..known+k-1, of which 31 is the last of use.
    rounds = accepted = rejected = drafted = 0
    known = 4
    while known < 33:
        last = min(known + drafts, 32)
        stop = next((position for position in range(known, last) if position in wrong), last)
        rounds += 1
        drafted += last - known
        accepted += stop - known
        rejected += stop < last
        known = stop + 1
    counts = sim.schedule.counts
    assert counts.cycles == stages * rounds
    assert (counts.drafted, counts.accepted, counts.rejected) == (drafted, accepted, rejected)
    check(counts)


def test_draft_then_verify_sends_what_there_is_when_the_drafter_falls_silent() -> None:
    schedule = Schedule(0, 3, draft_then_verify(3, 4), 4, itertools.count())
    schedule.start([1, 2], 20)
    assert len(schedule.announce()) == 1
    schedule.sample(Sample(0, 0, 2, (3,)))
    for token in (4, 5):
        draft(schedule, token)
        assert schedule.offer() is None, "more drafts may join the frame"
    schedule.flush()
    (frame,) = schedule.announce()
    assert (frame.position, frame.tokens) == (2, (3, 4, 5))
    assert not schedule.wants_draft()
    step = schedule.sample(Sample(0, 0, 3, (4, 5, 6)))
    assert list(step.tokens) == [4, 5, 6]
    assert not step.rejected
    schedule.flush()
    (frame,) = schedule.announce()
    assert (frame.epoch, frame.position, frame.tokens) == (0, 5, (6,))


def test_what_was_sampled_behind_an_end_token_or_the_limit_is_never_told() -> None:
    for max_tokens, stop, finish in ((20, (5,), "stop"), (3, (), "length")):
        schedule = Schedule(0, 2, draft_then_verify(2, 8), 4, itertools.count())
        schedule.start([1, 2], max_tokens, stop)
        schedule.announce()
        schedule.sample(Sample(0, 0, 2, (3,)))
        draft(schedule, 4)
        if finish == "stop":
            draft(schedule, 5)
        schedule.announce()
        assert len(schedule.in_flight) == 1, "no draft behind the last of use"
        step = schedule.sample(Sample(0, 0, 3, (4, 5, 6)[: schedule.end - 2]))
        assert (list(step.tokens), step.finish) == ([4, 5], finish)
        check(schedule.counts)


def test_a_sample_longer_than_its_frame_is_fatal() -> None:
    schedule = Schedule(0, 2, draft_then_verify(2, 1), 4, itertools.count())
    schedule.start([1, 2], 20)
    schedule.announce()
    schedule.sample(Sample(0, 0, 2, (3,)))
    draft(schedule, 4)
    schedule.announce()
    with pytest.raises(OutOfStep):
        schedule.sample(Sample(0, 0, 3, (4, 5, 6)))


def test_dead_frames_are_mostly_not_computed() -> None:
    sim = PipelineSim(8, acceptance=0.5, rng=random.Random(3), control=0.01)
    sim.run([Request([1], 150)])
    assert sum(stage.skipped for stage in sim.stages.all) > sum(stage.computed for stage in sim.stages.all) / 10


def test_nothing_is_drafted_past_an_end_token_or_the_token_limit() -> None:
    stop = target([1, 2])
    for request in (Request([1, 2], 9, (stop,)), Request([1, 2], 1)):
        sim = PipelineSim(4, rng=random.Random(0))
        (outcome,) = sim.run([request])
        assert outcome.tokens == [stop]
        assert sim.schedule.counts.drafted == 0
        assert sim.schedule.counts.cycles == 0


def new_schedule() -> Schedule:
    return Schedule(0, 3, pipelined(3), 4, itertools.count())


def test_stale_samples_mean_nothing_and_misplaced_ones_are_fatal() -> None:
    schedule = new_schedule()
    schedule.start([1, 2], 5)
    schedule.announce()
    assert not schedule.sample(Sample(0, 7, 2, (9,))).tokens
    with pytest.raises(OutOfStep, match="position 4"):
        schedule.sample(Sample(0, 0, 4, (9,)))


def test_a_sample_where_none_was_wanted_is_fatal() -> None:
    schedule = new_schedule()
    schedule.start([1, 2, 3, 4, 5], 5)
    schedule.announce()
    with pytest.raises(OutOfStep):
        schedule.sample(Sample(0, 0, 4, (9,)))


def test_abort_raises_the_epoch_and_frees_the_slot() -> None:
    schedule = new_schedule()
    schedule.start([1, 2], 5)
    schedule.announce()
    step = schedule.abort()
    assert list(step.control) == [Rollback(0, 1)]
    assert not schedule.running
    assert schedule.offer() is None
    assert schedule.abort().control == ()
    schedule.start([3], 2)
    (frame,) = schedule.announce()
    assert (frame.epoch, frame.position) == (1, 0)


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 1), ([1], 0)])
def test_start_refuses_what_cannot_run(prompt: list[int], max_tokens: int) -> None:
    with pytest.raises(ValueError, match="start"):
        new_schedule().start(prompt, max_tokens)


def test_what_an_earlier_engine_gave_is_computed_in_the_frames_it_had_by_all_stages_at_once() -> None:
    schedule = new_schedule()
    schedule.start([1, 2, 3, 4, 5], 20, generated=[6, 7, 8])
    control = schedule.announce()
    frames = []
    while control:
        frame = control.pop(0)
        frames.append((frame.position, frame.tokens, frame.wants_sample))
        assert len(schedule.in_flight) == min(schedule.stages, 5 - len(frames) + 1)
        if not frame.wants_sample:
            schedule.sample(Sample(0, 0, frame.end))
            control += schedule.announce()
    assert frames == [
        (0, (1, 2, 3, 4), False),
        (4, (5,), False),
        (5, (6,), False),
        (6, (7,), False),
        (7, (8,), True),
    ]
    assert schedule.sample(Sample(0, 0, 8, (9,))).tokens == [9]
    assert (schedule.outputs, schedule.fresh) == (4, 1)

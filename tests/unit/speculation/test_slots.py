"""Reusing what a KV slot holds: which slot, and how much of it."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.policy import pipelined
from speculation.decisions.schedule import Schedule
from speculation.decisions.slots import choose_slot, soon_held
from tests.unit.speculation.pipeline_sim import PipelineSim, Request, plain
from workers.shared.messages import Sample

CHUNK = 4


def served(slot: Schedule, prompt: list[int], new: int = 3) -> Schedule:
    """Runs a request through a slot, with a pipeline that answers at once."""
    slot.start(prompt, new, reused=slot.reusable(prompt))
    waiting = slot.announce()
    while waiting:
        frame = waiting.pop(0)
        tokens = (9,) if frame.wants_sample else ()
        slot.sample(Sample(slot.sequence, frame.epoch, frame.end, tokens))
        waiting += slot.announce()
    assert not slot.running
    return slot


def slot(number: int = 0) -> Schedule:
    return Schedule(number, 2, pipelined(2), CHUNK, itertools.count())


def test_whole_prompt_chunks_are_kept_and_nothing_else() -> None:
    text = list(range(10))
    used = served(slot(), text)
    assert used.kept == 8  # 8 and 9 came in a shorter chunk, the output token by token
    assert used.reusable([*text, 9, 9, 9, 5]) == 8
    assert used.reusable(text[:8]) == 4  # the last position must be computed: its logits are wanted
    assert used.reusable(text[:7]) == 4
    assert used.reusable([*text[:6], 40, 41, 42]) == 4
    assert used.reusable([7]) == 0
    assert used.reusable([*text, 1], limit=7) == 4


def test_an_aborted_prefill_keeps_what_came_through() -> None:
    fresh = slot()
    fresh.start(list(range(16)), 3)
    first, _ = fresh.announce()
    fresh.sample(Sample(0, 0, first.end))
    fresh.abort()
    assert fresh.kept == CHUNK


def test_a_shorter_reuse_forgets_the_rest() -> None:
    used = served(slot(), list(range(20)))
    served(used, [*range(4), 40, 41, 42, 43, 44])
    assert used.kept == 8
    assert used.reusable(list(range(20))) == 4


def test_a_conversation_returns_to_its_slot_and_a_new_one_takes_the_oldest() -> None:
    slots = [served(slot(0), list(range(20))), served(slot(1), [50, *range(30, 45)])]
    unlimited = lambda _: None  # noqa: E731
    assert choose_slot(slots, [0, 1], [*range(20), 1, 2, 3], unlimited) == (0, 20, 0)
    assert choose_slot(slots, [1, 0], [50, *range(30, 45), 7], unlimited) == (1, 16, 1)
    assert choose_slot(slots, [0, 1], [60] * 9, unlimited) == (0, 0, 0)
    assert choose_slot(slots, [1, 0], [60] * 9, unlimited) == (1, 0, 1)


def test_sharing_a_system_prompt_is_no_reason_to_lose_a_conversation() -> None:
    slots = [served(slot(0), list(range(40))), slot(1)]
    assert choose_slot(slots, [1, 0], [*range(4), *[70] * 30], lambda _: None).slot == 1
    assert choose_slot(slots, [1, 0], [*range(20), *[70] * 5], lambda _: None) == (0, 20, 0)


def test_what_another_slot_holds_is_copied_be_it_idle_or_not() -> None:
    slots = [served(slot(0), list(range(40))), slot(1)]
    assert choose_slot(slots, [1, 0], [*range(8), *[70] * 30], lambda _: None) == (1, 8, 0)
    assert choose_slot(slots, [1], [*range(40), 1], lambda _: None) == (1, 40, 0)
    assert choose_slot(slots, [1], [*range(40), 1], lambda slot: 9 if slot == 0 else 0) == (1, 8, 0)
    slots[1] = served(slot(1), [*range(8), 50])
    assert choose_slot(slots, [1], [*range(16), 1], lambda _: None) == (1, 16, 0), "a longer beginning than its own"


def test_a_prompt_that_is_being_computed_is_waited_for_as_far_as_it_is_shared() -> None:
    slots = [slot(0), slot(1)]
    unlimited = lambda _: None  # noqa: E731
    text = list(range(18))
    slots[0].start(text, 5)
    assert soon_held(slots, text, unlimited)
    assert not soon_held(slots, [*range(3), 9, 9, 9], unlimited), "less than a chunk is shared"
    frames = slots[0].announce()
    assert len(frames) == 2
    for held in (CHUNK, 2 * CHUNK, 3 * CHUNK, 4 * CHUNK):
        frame = frames.pop(0)
        slots[0].sample(Sample(0, 0, frame.end))
        frames += slots[0].announce()
        assert soon_held(slots, text, unlimited) == (held < 16)
        assert not soon_held(slots, [*range(CHUNK), 9, 9], unlimited)
    assert soon_held(slots, text, lambda _: 12), "the drafter's hidden states are still on their way"
    slots[0].sample(Sample(0, 0, 18, (7,)))
    assert not soon_held(slots, text, lambda _: 12), "with its first token they are there, or will never be"
    slots[0].abort()
    assert not soon_held(slots, text, lambda _: 0)


def test_the_drafter_limits_what_is_reused() -> None:
    slots = [served(slot(0), list(range(20)))]
    assert choose_slot(slots, [0], [*range(20), 1], lambda _: 9) == (0, 8, 0)


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@given(
    stages=st.integers(1, 5),
    delta=st.integers(0, 1),
    snapshots=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 2**32),
    batch=st.lists(st.tuples(prompts, st.integers(1, 8), st.none() | st.floats(0, 12)), min_size=2, max_size=6),
)
def test_reuse_never_changes_the_output(
    stages: int, delta: int, snapshots: int | None, seed: int, batch: list[tuple[list[int], int, float | None]]
) -> None:
    """Small alphabets make prompts begin alike; the simulated stages answer from what they really hold."""
    rng = random.Random(seed)
    sim = PipelineSim(
        stages,
        pipelined(stages, delta),
        CHUNK,
        acceptance=0.6,
        rng=rng,
        jitter=0.9,
        control=0.3,
        reuse=True,
        snapshots=snapshots,
    )
    requests = [Request(prompt, new, abort_after=abort) for prompt, new, abort in batch]
    for request, outcome in zip(requests, sim.run(requests), strict=True):
        expected = plain(request.prompt, request.max_tokens)
        assert outcome.tokens == (expected if outcome.finish != "abort" else expected[: len(outcome.tokens)])

"""Windows of several slots: whatever prompts come, a frame finds the positions that it reads."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.policy import pipelined
from speculation.decisions.schedule import Schedule
from speculation.decisions.slots import choose_slot
from tests.unit.speculation.pipeline_sim import WindowMemory
from workers.decisions.windows import HeldWindow
from workers.shared.errors import OutOfStep
from workers.shared.messages import Sample
from workers.shared.model_files.windows import WindowRule, layer_windows

CHUNK = 4


def serve(
    slots: Sequence[Schedule], memories: Sequence[WindowMemory], prompt: list[int], new: int, idle: Sequence[int]
) -> tuple[int, bool]:
    """Runs a request by itself; returns how much of its prompt was reused, and whether it was copied."""
    place = choose_slot(slots, idle, prompt, lambda _: None)
    schedule, memory = slots[place.slot], memories[place.slot]
    if copied := place.source != place.slot:
        memory.copy(memories[place.source], place.reused)
    schedule.start(prompt, new, reused=place.reused, copied=copied)
    waiting = schedule.announce()
    while waiting:
        frame = waiting.pop(0)
        memory.compute(frame, schedule.tokens)
        tokens = (frame.end % 3,) if frame.wants_sample else ()
        schedule.sample(Sample(schedule.sequence, frame.epoch, frame.end, tokens))
        waiting += schedule.announce()
    return place.reused, copied


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=60)


@given(
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(2, 4),
    st.lists(st.tuples(prompts, st.integers(1, 40)), max_size=8),
)
def test_a_prompt_begins_only_where_its_window_is_whole(
    count: int, window: int, back: int, asked: list[tuple[list[int], int]]
) -> None:
    rule = WindowRule(window, CHUNK, 2, back)
    numbers = itertools.count()
    slots = [Schedule(slot, 2, pipelined(2), CHUNK, numbers, back) for slot in range(count)]
    memories = [WindowMemory(rule) for _ in range(count)]
    for turn, (prompt, new) in enumerate(asked):
        serve(slots, memories, prompt, new, [turn % count])
        serve(slots, memories, [*prompt, 1, 0, 1, 0, 1], new, range(count))


def test_a_conversation_goes_on_and_others_begin_with_what_it_shares() -> None:
    rule = WindowRule(6, CHUNK, 2, 3)
    slots = [Schedule(slot, 2, pipelined(2), CHUNK, itertools.count(), 3) for slot in range(2)]
    memories = [WindowMemory(rule) for _ in range(2)]
    text = [number % 3 for number in range(41)]
    assert serve(slots, memories, text, 30, [0]) == (0, False)
    assert serve(slots, memories, [*text, *range(10)], 5, [0, 1]) == (40, False)
    assert serve(slots, memories, [*text, 7, 7], 5, [1]) == (40, True)
    assert serve(slots, memories, text[:30], 5, [0, 1]) == (0, False), "so far back no window is kept"


def test_a_prompt_in_the_making_is_waited_for_as_long_as_it_can_be_begun_behind() -> None:
    schedule = Schedule(0, 1, pipelined(1), CHUNK, itertools.count(), 2)
    text = list(range(30))
    alike = [*text[:9], 90]
    schedule.start(text, 5)
    seen = []
    for _ in range(7):
        seen.append((schedule.coming(alike), schedule.reusable(alike)))
        (frame,) = schedule.announce()
        schedule.sample(Sample(0, frame.epoch, frame.end))
    assert seen == [(8, 0), (8, 4), (8, 8), (8, 8), (0, 0), (0, 0), (0, 0)]


def test_what_was_given_back_is_not_read() -> None:
    held = HeldWindow(WindowRule(6, CHUNK, 2, 2))
    given_back = [held.begin(position, CHUNK) for position in range(0, 40, CHUNK)]
    assert given_back[-1] == (0, 40 - CHUNK - 5)
    for position in range(40, 80):
        held.begin(position, 1)
    held.begin(78, 1)
    for lost in (31, 60):
        with pytest.raises(OutOfStep, match=f"a frame at {lost} would read from {lost - 5} on"):
            held.begin(lost, 1)


def test_which_layers_have_a_window() -> None:
    def windows(kind: str, **said: object) -> list[int | None]:
        return list(layer_windows({"model_type": kind, "num_hidden_layers": 4, **said}))

    assert windows("llama") == [None] * 4
    assert windows("mistral", sliding_window=9) == [9] * 4
    assert windows("mistral", sliding_window=None) == [None] * 4
    assert windows("gemma2", sliding_window=9) == [9, None, 9, None]
    assert windows("gemma3_text", sliding_window=9, sliding_window_pattern=3) == [9, 9, None, 9]
    assert windows("qwen2", sliding_window=9, layer_types=["sliding_attention"] * 4) == [None] * 4, "not in use"
    kinds = ["full_attention", "sliding_attention"] * 2
    assert windows("qwen2", sliding_window=9, use_sliding_window=True, layer_types=kinds) == [None, 9, None, 9]
    assert windows("exaone4", sliding_window=9) == [None] * 4, "nobody says which"
    assert windows("gemma4_text", sliding_window=9, layer_types=["sliding_attention"] * 4) == [9, 9, 9, None]

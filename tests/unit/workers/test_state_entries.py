"""Entries of recurrent states: a frame begins with the state behind its predecessor, or nothing is computed."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.decisions.state_entries import Returns, StateEntries
from workers.shared.errors import OutOfStep

CHUNK = 4


def wrote(entries: StateEntries, position: int, length: int) -> Sequence[int]:
    return entries.wrote(position, length, chunk=entries.is_chunk(position, length))


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 1, 2, CHUNK])), max_size=40))
def test_an_entry_is_what_was_written_last_at_its_position(frames: list[tuple[int, int]]) -> None:
    """Against texts: whatever order frames come in, a state that is found is that of the text there is."""
    entries = StateEntries(ring=5, snapshots=2, chunk=CHUNK)
    texts: list[tuple[int, ...]] = [()] * entries.count
    present: list[int] = []
    for number, (position, length) in enumerate(frames):
        if position > len(present):
            continue
        try:
            source = entries.source(position)
        except OutOfStep:
            continue
        assert source is None or texts[source] == tuple(present[:position])
        present = [*present[:position], *[number] * length]
        for entry in wrote(entries, position, length):
            texts[entry] = tuple(present)


def test_any_position_in_flight_can_be_gone_back_to() -> None:
    entries = StateEntries(ring=5, snapshots=1, chunk=CHUNK)
    wrote(entries, 0, 3)
    for position in range(3, 30):
        wrote(entries, position, 1)
        for back in range(max(position - 3, 3), position + 1):
            entries.source(back)
    with pytest.raises(OutOfStep, match="no state is kept behind position 24"):
        entries.source(25)


def test_what_was_behind_a_frame_is_forgotten() -> None:
    entries = StateEntries(ring=8, snapshots=1, chunk=CHUNK)
    for position in range(6):
        wrote(entries, position, 1)
    wrote(entries, 2, 1)
    entries.source(3)
    with pytest.raises(OutOfStep):
        entries.source(4)


def test_snapshots_are_of_whole_chunks_only() -> None:
    entries = StateEntries(ring=2, snapshots=2, chunk=CHUNK)
    for start in (0, 4, 8):
        wrote(entries, start, CHUNK)
    for position in range(12, 30):
        wrote(entries, position, 1)
    for kept in (8, 12):
        entries.source(kept)
    for lost in (4, 16, 20, 24):
        with pytest.raises(OutOfStep):
            entries.source(lost)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.integers(0, 12)),
            st.tuples(st.sampled_from(["computed", "aborted"]), st.integers(1, 4)),
        ),
        max_size=30,
    )
)
def test_rank_0_never_promises_what_a_stage_has_not(events: list[tuple[str, int]]) -> None:
    stage, rank_0 = StateEntries(3, 2, CHUNK), Returns(CHUNK, 2)
    position = 0
    for what, count in events:
        if what == "begin":
            position = rank_0.at_most(count * CHUNK)
            rank_0.began(position)
            stage.source(position)
            continue
        ends = [position + CHUNK * number for number in range(1, count + 1)]
        for end in ends:
            rank_0.announced(end - CHUNK, CHUNK)
            if what == "computed":
                stage.source(end - CHUNK)
                wrote(stage, end - CHUNK, CHUNK)
        for end in ends if what == "computed" else []:  # rank 0 hears of it later
            rank_0.computed(end)
        position = ends[-1]
        if what == "aborted":  # announced, and never computed
            position = rank_0.at_most(position)
            rank_0.began(position)
            stage.source(position)


def test_a_model_without_states_begins_behind_any_chunk() -> None:
    assert Returns(CHUNK, None).at_most(11) == 8
    assert Returns(CHUNK, 2).at_most(11) == 0

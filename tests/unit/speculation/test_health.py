"""Ping rounds, limits that know long frames, and progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.health import Overdue, PingRounds
from workers.decisions.patience import frame_limit
from workers.shared.errors import PeerLost
from workers.shared.messages import Pong, StageTimings

LIMIT = 5.0


def test_a_probe_is_answered_by_a_round_that_began_after_it() -> None:
    rounds = PingRounds(2, interval=1.0)
    assert rounds.due(0.0, LIMIT) == 1
    rounds.probe(b"a", 7)
    assert rounds.pong(Pong(1, 0, StageTimings())) == []
    assert rounds.pong(Pong(1, 1, StageTimings())) == []  # this round began before the probe
    assert rounds.due(0.1, LIMIT) == 2  # at once: a probe waits
    assert rounds.pong(Pong(2, 0, StageTimings())) == []
    assert rounds.pong(Pong(2, 1, StageTimings(frames=3))) == [(b"a", 7)]
    assert rounds.timings[1].frames == 3


def test_idle_rounds_keep_the_interval() -> None:
    rounds = PingRounds(1, interval=1.0)
    assert rounds.due(0.0, LIMIT) == 1
    assert rounds.due(0.5, LIMIT) is None
    rounds.pong(Pong(1, 0, StageTimings()))
    assert rounds.due(0.9, LIMIT) is None
    assert rounds.due(1.0, LIMIT) == 2


def test_an_open_round_is_repeated_so_that_idle_stages_hear_of_rank_0() -> None:
    rounds = PingRounds(2, interval=1.0)
    rounds.probe(b"a", 7)
    assert rounds.due(0.0, LIMIT) == 1
    rounds.pong(Pong(1, 0, StageTimings()))
    assert [rounds.due(now, LIMIT) for now in (0.9, 1.0, 1.5, 2.1)] == [None, 1, None, 1]
    assert rounds.pong(Pong(1, 0, StageTimings())) == []
    assert rounds.pong(Pong(1, 1, StageTimings())) == [(b"a", 7)]
    assert rounds.pong(Pong(1, 1, StageTimings())) == []


def test_a_late_stage_is_named() -> None:
    rounds = PingRounds(3, interval=1.0)
    rounds.due(0.0, LIMIT)
    rounds.pong(Pong(1, 1, StageTimings()))
    rounds.due(5.0, LIMIT)
    with pytest.raises(PeerLost, match="stage 0, 2 for 5 s"):
        rounds.due(5.1, LIMIT)


def test_an_answer_to_an_older_round_does_not_count() -> None:
    rounds = PingRounds(1, interval=1.0)
    rounds.due(0.0, LIMIT)
    rounds.pong(Pong(1, 0, StageTimings()))
    rounds.probe(b"a", 1)
    assert rounds.due(0.1, LIMIT) == 2
    assert rounds.pong(Pong(1, 0, StageTimings())) == []
    assert rounds.pong(Pong(2, 0, StageTimings())) == [(b"a", 1)]


seconds = st.floats(1e-4, 30.0)


@given(
    st.lists(st.tuples(seconds, st.floats(0.0, 1.0), st.integers(0, 5), st.integers(0, 50)), min_size=1, max_size=8),
    st.integers(1, 512),
    st.floats(1.0, 60.0),
)
def test_no_frame_outlasts_its_limit_though_the_machine_is_several_times_slower_than_it_was(
    stages: list[tuple[float, float, int, int]], tokens: int, limit: float
) -> None:
    """A stage takes `alone` seconds for a token and `more` of that for each further one in the same frame."""

    def took(alone: float, more: float, width: int) -> float:
        return alone * (1 + more * (width - 1))

    timings = []
    for alone, more, chunks, steps in stages:
        busy = chunks * took(alone, more, tokens) + steps * alone
        count = chunks * tokens + steps
        timings.append(StageTimings(frames=chunks + steps, tokens=count, forward_ns=int(busy * 1e9)))
    if all(stage.tokens for stage in timings):
        slower, whole = 7.5, sum(took(alone, more, tokens) for alone, more, *_ in stages)
        assert frame_limit(limit, tokens, timings) >= slower * whole
    else:
        at_first = limit * (1 + len(stages) * tokens / 64)
        assert frame_limit(limit, tokens, timings) >= at_first * (1 - 1e-9)  # but for rounding
    assert frame_limit(limit, 0, timings) == limit


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from([None, -1, 4, 5, 6])), max_size=30), st.floats(0.5, 8.0))
def test_the_same_frame_may_be_awaited_for_no_longer_than_its_limit(
    looks: list[tuple[float, int | None]], limit: float
) -> None:
    progress, now, before, waited = Overdue(interval=1.0), 0.0, None, 0.0
    for passed, awaited in looks:
        now += passed
        waited = waited + min(passed, 2.0) if awaited is not None and awaited == before else 0.0
        before = awaited
        if waited > limit + 1e-6:
            with pytest.raises(PeerLost, match="no frame is in flight" if awaited == -1 else f"frame {awaited}"):
                progress.look(now, awaited, limit)
            return
        if waited < limit - 1e-6:
            progress.look(now, awaited, limit)
        else:
            return

"""Ping rounds."""

import pytest

from speculation.decisions.health import PingRounds
from workers.shared.errors import PeerLost
from workers.shared.messages import Pong, StageTimings


def test_a_probe_is_answered_by_a_round_that_began_after_it() -> None:
    rounds = PingRounds(2, interval=1.0, deadline=5.0)
    assert rounds.due(0.0) == 1
    rounds.probe(b"a", 7)
    assert rounds.pong(Pong(1, 0, StageTimings())) == []
    assert rounds.pong(Pong(1, 1, StageTimings())) == []  # this round began before the probe
    assert rounds.due(0.1) == 2  # at once: a probe waits
    assert rounds.pong(Pong(2, 0, StageTimings())) == []
    assert rounds.pong(Pong(2, 1, StageTimings(frames=3))) == [(b"a", 7)]
    assert rounds.timings[1].frames == 3


def test_idle_rounds_keep_the_interval() -> None:
    rounds = PingRounds(1, interval=1.0, deadline=5.0)
    assert rounds.due(0.0) == 1
    assert rounds.due(0.5) is None
    rounds.pong(Pong(1, 0, StageTimings()))
    assert rounds.due(0.9) is None
    assert rounds.due(1.0) == 2


def test_a_late_stage_is_named() -> None:
    rounds = PingRounds(3, interval=1.0, deadline=5.0)
    rounds.due(0.0)
    rounds.pong(Pong(1, 1, StageTimings()))
    assert rounds.due(5.0) is None
    with pytest.raises(PeerLost, match="stage 0, 2 for 5 s"):
        rounds.due(5.1)


def test_an_answer_to_an_older_round_does_not_count() -> None:
    rounds = PingRounds(1, interval=1.0, deadline=5.0)
    rounds.due(0.0)
    rounds.pong(Pong(1, 0, StageTimings()))
    rounds.probe(b"a", 1)
    assert rounds.due(0.1) == 2
    assert rounds.pong(Pong(1, 0, StageTimings())) == []
    assert rounds.pong(Pong(2, 0, StageTimings())) == [(b"a", 1)]

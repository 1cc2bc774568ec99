"""Which stages are missing is said soon, then now and again, until the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.roll_call import RollCall
from workers.shared.errors import PeerLost

ADDRESSES = ("tcp://rank0:5553", "tcp://rank0:5554")


def test_missing_stages_are_named_with_their_addresses_until_the_limit() -> None:
    roll = RollCall(ADDRESSES, limit=100, now=5)
    told = [now for now in range(5, 106) if roll.look(now) is not None]
    assert told[0] <= 15, "within ten seconds"
    assert 2 <= len(told) <= 6, "now and again, not all the time"
    roll.missing.discard(0)
    with pytest.raises(PeerLost, match=r"stage 1, expected at tcp://rank0:5554 after --ready-timeout 100 s"):
        roll.look(105.5)


def test_a_stage_that_goes_on_loading_is_told_from_one_that_hangs() -> None:
    roll = RollCall(ADDRESSES, limit=100, now=0)
    for now in range(0, 400, 2):
        roll.heard(0, now, 1000, now)
        text = roll.look(now)
        assert text is None or f"stage 0, which had loaded {now} bytes of 1000 bytes" in text
        assert text is None or "stage 1, expected at" in text
    roll.missing.discard(1)
    roll.look(498)
    with pytest.raises(PeerLost, match=r"had loaded 398 bytes of 1000 .* 101 s ago, after --ready-timeout 100 s"):
        roll.look(499)


@given(st.lists(st.floats(0, 30), max_size=40))
def test_nothing_is_said_or_raised_once_all_are_there(gaps: list[float]) -> None:
    roll = RollCall(ADDRESSES, limit=10, now=0)
    roll.missing.clear()
    now = 0.0
    for gap in gaps:
        now += gap
        assert roll.look(now) is None
    roll.missing.add(1)  # one has gone again, and the limit with it
    with pytest.raises(PeerLost, match="stage 1"):
        roll.look(now + 11)

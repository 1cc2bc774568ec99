"""When an idle device is kept from clocking down."""

from hypothesis import given
from hypothesis import strategies as st

from workers.decisions.warmth import Warmth


def test_it_works_between_frames_and_not_for_long() -> None:
    warmth = Warmth(1.0)
    assert not warmth.look(0.0, 7)[0]  # whatever was computed before anybody looked
    assert not warmth.look(0.1, 7)[0]
    assert not warmth.look(0.2, 8)[0]
    assert warmth.look(0.21, 8)[0]
    assert warmth.look(1.19, 8)[0]
    assert not warmth.look(1.2, 8)[0]
    assert not warmth.look(50.0, 9)[0]
    assert warmth.look(50.1, 9)[0]


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.integers(0, 2)), max_size=30), st.floats(0.01, 2.0))
def test_it_never_works_while_frames_are_computed_nor_long_after(
    steps: list[tuple[float, int]], seconds: float
) -> None:
    warmth, now, frames, changed = Warmth(seconds), 0.0, 0, None
    warmth.look(now, frames)
    for after, more in steps:
        now, frames = now + after, frames + more
        due, pause = warmth.look(now, frames)
        if more:
            changed = now
        assert due == (not more and changed is not None and now - changed < seconds)
        assert 0 < pause <= 0.1

"""When to try again, from how often somebody leaves."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.departures import Departures


def test_nobody_has_left_yet() -> None:
    departures = Departures()
    assert departures.retry_after(5) == 1
    departures.left(10.0)
    assert departures.retry_after(5) == 1


def test_a_place_takes_as_long_as_between_two_that_left() -> None:
    departures = Departures()
    for second in range(0, 30, 3):
        departures.left(float(second))
    assert [departures.retry_after(places) for places in (1, 2, 7)] == [3, 6, 21]


@given(st.lists(st.floats(0, 1e9), min_size=2).map(sorted), st.integers(1, 1000))
def test_it_is_a_number_of_seconds_that_somebody_would_wait(times: list[float], places: int) -> None:
    departures = Departures()
    for time in times:
        departures.left(time)
    assert 1 <= departures.retry_after(places) <= departures.retry_after(places + 1) <= 60

"""Which host holds which stage, whatever comes and goes."""

from hypothesis import given
from hypothesis import strategies as st

from server.hosts.roster import Roster, relative_speeds, stages_of
from workers.shared.hosts.messages import Join, Seat

Hosts = list[tuple[int, int | None]]  # seats, and the stage that the first of them must be


def offer(seats: int, stage: int | None = None) -> Join:
    return Join("host", "10.0.0.1", tuple(Seat(f"cuda:{i}", 1 << 30, 1e9) for i in range(seats)), "1", stage)


def roster(hosts: Hosts) -> Roster:
    made = Roster(patience=15.0)
    for number, (seats, stage) in enumerate(hosts):
        made.joined(bytes([number]), offer(seats, stage), now=0.0)
    return made


@given(st.lists(st.tuples(st.integers(1, 4), st.none() | st.integers(0, 7)), max_size=6), st.integers(1, 8))
def test_every_stage_has_a_seat_of_its_own_or_there_is_no_engine(hosts: Hosts, stages: int) -> None:
    seating = roster(hosts).seating(stages)
    asking = {  # hosts, by the stage they want
        stage: [number for number, (n, first) in enumerate(hosts) if first is not None and first <= stage < first + n]
        for stage in range(stages)
    }
    free = sum(seats for seats, first in hosts if first is None)
    assert (seating is not None) == (sum(not numbers for numbers in asking.values()) <= free)
    if seating is not None:
        assert len({(place.member, id(place.seat)) for place in seating}) == len(seating) == stages
        assert all(seating[stage].member == bytes([numbers[0]]) for stage, numbers in asking.items() if numbers)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 24))
def test_stages_of_one_host_are_neighbours(seats: list[int], stages: int) -> None:
    seating = roster([(count, None) for count in seats]).seating(stages)
    for number in range(len(seats)) if seating is not None else ():
        held = stages_of(seating or (), bytes([number]))
        assert held == tuple(range(held[0], held[0] + len(held))) if held else True


def test_a_host_that_left_or_is_silent_holds_nothing_and_may_come_back() -> None:
    hosts = roster([(1, None), (1, None)])
    assert hosts.heard(b"\x01", now=10.0)
    assert hosts.silent(now=16.0) == [b"\x00"]
    assert hosts.left(b"\x00") is not None
    assert hosts.left(b"\x00") is None
    assert not hosts.heard(b"\x00", now=16.0)
    assert hosts.seating(2) is None
    hosts.joined(b"\x02", offer(1), now=17.0)
    seating = hosts.seating(2)
    assert seating is not None
    assert [place.member for place in seating] == [b"\x01", b"\x02"]


def test_speeds_that_were_not_measured_or_hardly_differ_do_not_move_layers() -> None:
    def seats(*speeds: float) -> list[Seat]:
        return [Seat("cpu", 1, speed) for speed in speeds]

    assert relative_speeds(seats(0, 1e9)) is None
    assert relative_speeds(seats(1e9, 1.2e9)) is None
    assert relative_speeds(seats(1e12, 5e11)) == (1000, 500)

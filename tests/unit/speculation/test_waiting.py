"""Who starts next: against a list that is sorted anew each time."""

from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.waiting import WaitingLine

JOIN, LEAVE = "join", "leave"
moves = st.lists(
    st.one_of(
        st.tuples(st.just(JOIN), st.integers(-3, 3)),
        st.tuples(st.just(LEAVE), st.integers(0, 10)),
    )
)


@given(moves)
def test_lowest_number_first_and_then_first_come_first_served(moves: list[tuple[str, int]]) -> None:
    line: WaitingLine[object] = WaitingLine()
    oracle: list[tuple[int, int, object]] = []
    for number, (move, value) in enumerate(moves):
        if move == JOIN:
            item = object()
            line.join(item, value)
            oracle.append((value, number, item))
        elif oracle:
            oracle.sort(key=lambda place: place[:2])
            line.remove(oracle.pop(value % len(oracle))[2])
        assert list(line) == [place[2] for place in sorted(oracle, key=lambda place: place[:2])]
        assert len(line) == len(oracle)

"""Memory of slots: what is forgotten for a request, and that it is never more than there is."""

from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.slots import to_forget


def test_the_first_in_order_are_forgotten_until_there_is_room() -> None:
    kept = {0: 10, 1: 0, 2: 20, 3: 30}
    assert to_forget(100, 0, kept, [3, 1, 2, 0], 40) == []
    assert to_forget(100, 20, kept, [3, 1, 2, 0], 40) == [3]
    assert to_forget(100, 20, kept, [0, 1, 2, 3], 45) == [0, 2]
    assert to_forget(100, 60, kept, [0, 1, 2, 3], 41) is None


@given(
    st.integers(0, 200),
    st.integers(0, 200),
    st.dictionaries(st.integers(0, 5), st.integers(0, 50)),
    st.integers(0, 200),
)
def test_what_is_taken_and_kept_is_never_more_than_there_is(
    total: int, running: int, kept: dict[int, int], wanted: int
) -> None:
    order = sorted(kept)
    forgotten = to_forget(total, running, kept, order, wanted)
    if forgotten is None:
        assert running + wanted > total
        return
    left = sum(count for slot, count in kept.items() if slot not in forgotten)
    assert running + wanted + left <= total
    for slot in forgotten[-1:]:
        assert running + wanted + left + kept[slot] > total, "one too many"

"""What a draft is worth: the drafter's own confidence, corrected by what came of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.drafts.worth import Acceptance

confidences = st.lists(st.none() | st.floats(0, 1), max_size=6)


def test_without_a_word_of_the_drafter_it_is_what_was_right_lately() -> None:
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.verified(right=False, confidence=None)
    assert acceptance.worth([None]) < 0.01
    for _ in range(200):
        acceptance.verified(right=True, confidence=None)
    assert acceptance.worth([None, None]) == pytest.approx(1.0)


def test_a_drafter_that_promises_twice_what_comes_is_believed_by_half() -> None:
    acceptance = Acceptance()
    for number in range(400):
        acceptance.verified(right=number % 2 == 0, confidence=1.0)
    sure, unsure = acceptance.worth([1.0]), acceptance.worth([0.4])
    assert sure == pytest.approx(0.5, abs=0.1)
    assert unsure == pytest.approx(0.4 * sure)
    assert acceptance.worth([1.0, 0.4]) == pytest.approx(sure * unsure)


@given(st.lists(st.tuples(st.booleans(), st.none() | st.floats(0, 1))), confidences, st.none() | st.floats(0, 1))
def test_it_is_a_probability_and_one_more_draft_is_never_worth_more(
    past: list[tuple[bool, float | None]], drafts: list[float | None], more: float | None
) -> None:
    acceptance = Acceptance()
    for right, confidence in past:
        acceptance.verified(right=right, confidence=confidence)
    assert 0.0 <= acceptance.worth([*drafts, more]) <= acceptance.worth(drafts) <= 1.0
    assert acceptance.worth([]) == 1.0

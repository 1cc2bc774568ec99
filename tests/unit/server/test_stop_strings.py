"""Stop strings against a naive oracle that sees the whole text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.output.stop_strings import StopMatcher

texts = st.text("abc", max_size=40)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def oracle(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Grows the text by one character at a time until it ends in a stop string."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({place % (len(text) + 1) for place in cuts} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


@given(texts, stop_lists, st.lists(st.integers(0, 100), max_size=10))
def test_shows_what_the_oracle_shows_however_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join([matcher.push(piece) for piece in cut(text, cuts)])
    shown += matcher.flush()
    assert (shown, matcher.matched) == oracle(text, stops)


@given(texts, stop_lists)
def test_holds_back_no_more_than_the_longest_beginning_of_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end in range(1, len(text) + 1):
        shown += matcher.push(text[end - 1])
        if matcher.matched is not None:
            return
        beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        held = max((len(start) for start in beginnings if text[:end].endswith(start)), default=0)
        assert shown == text[: end - held]


def test_shows_nothing_after_a_match() -> None:
    matcher = StopMatcher(["X"])
    assert matcher.push("aXb") == "a"
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


def test_refuses_an_empty_stop_string() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])

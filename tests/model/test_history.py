"""The history of a request: whatever is written over, its counts are those of the tokens that are there."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from workers.sampling.history import History, TokenCounts
from workers.shared.messages import Sampling

PENALISED = Sampling(seed=0, repetition_penalty=1.1, presence_penalty=0.1)
TOKENS = st.lists(st.integers(0, 200), max_size=90)  # more kinds than there is room for at first
WRITES = st.lists(st.tuples(st.integers(0, 300), TOKENS), max_size=12)


def counted(counts: TokenCounts | None) -> Counter[int]:
    assert counts is not None
    found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) if counts else {}
    assert len(found) == len(counts)
    return Counter(found)


@given(st.integers(0, 40), WRITES)
def test_counts_are_those_of_the_tokens_that_are_there(prompt_tokens: int, writes: list[tuple[int, list[int]]]) -> None:
    history, tokens = History(prompt_tokens, PENALISED), list[int]()
    for position, written in writes:
        position = min(position, len(tokens))
        tokens[position:] = written
        history.write(position, tuple(written))
        assert history.tokens == tokens
        assert counted(history.seen) == Counter(tokens)
        assert counted(history.output) == Counter(tokens[prompt_tokens:])
        assert history.outputs == len(tokens[prompt_tokens:])


@given(st.lists(st.integers(0, 3), max_size=10), st.lists(st.tuples(st.integers(0, 3), TOKENS), max_size=8))
def test_a_text_with_drafts_is_followed(prompt: list[int], steps: list[tuple[int, list[int]]]) -> None:
    history, final = History(len(prompt), PENALISED), list(prompt)
    for verified, drafts in steps:
        history.follow(final + drafts, len(final))
        assert history.tokens == final + drafts
        assert counted(history.output) == Counter((final + drafts)[len(prompt) :])
        final = final + drafts[:verified]


def test_nothing_is_counted_that_nobody_asks_for() -> None:
    history = History(1, Sampling(seed=0), [1, 2])
    assert history.seen is None
    assert history.output is None

"""A grammar matcher after any detour through drafts is where a fresh one would be."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from speculation.drafters.base import Draft, Drafter, Start
from speculation.drafters.forced import ForcedDrafter
from tests.small_model import EOS, VOCAB_SIZE, byte_level_tokenizer, write_model_folder
from workers.shared.grammar import GrammarFailed, GrammarMatcher, Grammars, only_choice, permits
from workers.shared.messages import Sampling

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["the town", "the river"]}, "count": {"type": "integer"}},
    "required": ["city", "count"],
    "additionalProperties": False,
}
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides=COMPACT)  # type: ignore[arg-type]
TOKENIZER = byte_level_tokenizer()
ANSWER = [*TOKENIZER.encode('{"city": "the town", "count": 12}', add_special_tokens=False).ids, EOS]


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    return Grammars(write_model_folder(tmp_path_factory.mktemp("model")))


def fresh(grammars: Grammars, output: Sequence[int]) -> bytes | None:
    matcher = GrammarMatcher(grammars, GRAMMAR)
    for place, token in enumerate(output):
        matcher.write(place, [token])
    return matcher.allowed()


writes = st.lists(
    st.tuples(
        st.integers(0, len(ANSWER)),
        st.integers(0, 4),
        st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3),
        st.booleans(),
    ),
    max_size=12,
)


@given(writes)
@settings(max_examples=200)
def test_any_detour_leads_to_the_same_mask(grammars: Grammars, steps: list[tuple[int, int, list[int], bool]]) -> None:
    matcher = GrammarMatcher(grammars, GRAMMAR)
    output: list[int] = []
    for position, right, wrong, look in steps:
        start = min(position, len(output))
        # Rejoin the right answer now and then: random tokens alone would be illegal for ever.
        tokens = [*ANSWER[start : start + right], *wrong]
        matcher.write(start, tokens)
        output[start:] = tokens
        if look:
            assert matcher.allowed() == fresh(grammars, output)
    assert matcher.allowed() == fresh(grammars, output)


def test_the_end_token_is_legal_exactly_where_the_grammar_accepts(grammars: Grammars) -> None:
    matcher = GrammarMatcher(grammars, GRAMMAR)
    for place, token in enumerate(ANSWER):
        allowed = matcher.allowed()
        assert allowed is not None
        assert permits(allowed, token)
        assert permits(allowed, EOS) == (place == len(ANSWER) - 1)
        matcher.write(place, [token])


def test_an_illegal_token_permits_anything_until_it_is_rolled_back(grammars: Grammars) -> None:
    matcher = GrammarMatcher(grammars, GRAMMAR)
    matcher.write(0, [EOS, 5, 6])
    assert matcher.allowed() is None
    matcher.write(0, ANSWER[:3])
    assert matcher.allowed() == fresh(grammars, ANSWER[:3])


@pytest.mark.parametrize("text", ["<|im_start|>x", "a <|im_end|>"])
def test_text_that_spells_a_special_token_is_written_with_others(grammars: Grammars, text: str) -> None:
    matcher, output = GrammarMatcher(grammars, f"start: {json.dumps(text)}"), []
    while EOS not in output:
        allowed = matcher.allowed()
        assert allowed is not None
        output.append(next(token for token in range(VOCAB_SIZE) if permits(allowed, token)))
        matcher.write(len(output) - 1, output[-1:])
    special = TOKENIZER.get_added_tokens_decoder()
    assert not any(token in special for token in output[:-1])
    assert TOKENIZER.decode(output[:-1], skip_special_tokens=False) == text


def test_matchers_of_one_grammar_are_independent(grammars: Grammars) -> None:
    first, second = GrammarMatcher(grammars, GRAMMAR), GrammarMatcher(grammars, GRAMMAR)
    first.write(0, ANSWER[:4])
    second.write(0, [EOS])
    assert second.allowed() is None
    assert first.allowed() == fresh(grammars, ANSWER[:4])
    assert GrammarMatcher(grammars, GRAMMAR).allowed() == fresh(grammars, [])


def test_a_grammar_that_does_not_compile_is_an_error_and_not_a_crash(grammars: Grammars) -> None:
    matcher = GrammarMatcher(grammars, "start: nothing")
    with pytest.raises(GrammarFailed, match="nothing"):
        matcher.allowed()
    matcher.write(0, [5])
    with pytest.raises(GrammarFailed):
        matcher.allowed()


@pytest.mark.parametrize(("mask", "choice"), [(b"\x00\x00", None), (b"\x00\x02", 9), (b"\x01\x02", None)])
def test_only_choice(mask: bytes, choice: int | None) -> None:
    assert only_choice(mask) == choice


class Guesser(Drafter):
    """Guesses one fixed token, and counts how often it was asked."""

    def __init__(self, guess: int) -> None:
        self.guess = guess
        self.asked = 0

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        self.asked = 0

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        self.asked += 1
        return Draft((self.guess,))


def test_forced_tokens_are_drafted_without_asking_the_drafter(grammars: Grammars) -> None:
    inner = Guesser(EOS)
    drafter = ForcedDrafter(inner, grammars)
    prompt = [7, 8, 9]
    drafter.begin(prompt, Sampling(seed=0, grammar=GRAMMAR), Start())
    tokens = [*prompt, ANSWER[0]]
    drafter.verified(tokens, len(tokens))
    while inner.asked == 0:
        draft = drafter.draft(tokens)
        if isinstance(draft, Draft):
            tokens.append(draft.token)
    assert tokens == [*prompt, *ANSWER[: len(tokens) - 3]]
    assert len(tokens) > 8
    # The first choice is between two cities: what is verified in its place is followed, drafts behind it are dropped.
    tokens.append(ANSWER[len(tokens) - 3])
    drafter.verified(tokens, len(tokens))
    assert drafter.draft(tokens) in (None, Draft((ANSWER[len(tokens) - 3],)))


def test_a_rejected_draft_is_forgotten(grammars: Grammars) -> None:
    drafter = ForcedDrafter(Guesser(ANSWER[5]), grammars)
    drafter.begin([7], Sampling(seed=0, grammar=GRAMMAR), Start())
    drafter.verified([7, ANSWER[0]], 2)
    drafter.draft([7, ANSWER[0], EOS, EOS])
    for count in range(2, len(ANSWER) + 1):
        drafter.verified([7, *ANSWER[:count]], count + 1)
        forced = only_choice(fresh(grammars, ANSWER[:count]) or b"")
        if forced is not None:
            assert drafter.draft([7, *ANSWER[:count]]) == Draft((forced,))


def test_texts_that_branch_are_each_followed_from_what_is_verified(grammars: Grammars) -> None:
    drafter = ForcedDrafter(Guesser(EOS), grammars)
    drafter.begin([7], Sampling(seed=0, grammar=GRAMMAR), Start())
    for verified in range(1, len(ANSWER) - 3):
        drafter.verified([7, *ANSWER[:verified]], verified + 1)
        right, wrong = ANSWER[verified], (ANSWER[verified] + 1) % VOCAB_SIZE
        for branch in ((right,), (wrong,), (right, ANSWER[verified + 1]), (wrong, right), ()):
            text = [7, *ANSWER[:verified], *branch]
            expected = fresh(grammars, text[1:])
            assert drafter._allowed(text) == expected


def test_without_a_grammar_it_is_the_drafter_itself(grammars: Grammars) -> None:
    drafter = ForcedDrafter(Guesser(77), grammars)
    drafter.begin([7], Sampling(seed=0), Start())
    drafter.verified([7, 8], 2)
    assert drafter.draft([7, 8]) == Draft((77,))

"""The combined drafter takes the module's guess unless a lookup has been the better one."""

from collections.abc import Sequence

from speculation.drafters.base import Draft, Drafter, Start
from speculation.drafters.combined import CombinedDrafter
from speculation.drafters.ngram import NgramDrafter
from workers.shared.messages import Sampling

GREEDY = Sampling(seed=0, temperature=0)
SAMPLED = Sampling(seed=0, temperature=1)
LOOP = [1, 2, 3, 4, 5, 6, 7, 8]


class Fixed(Drafter):
    """Always guesses `token`."""

    def __init__(self, token: int | None, confidence: float) -> None:
        self.token = token
        self.confidence = confidence
        self.asked = 0

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        self.asked += 1
        return None if self.token is None else Draft((self.token, 99), self.confidence)


def drafts(module: Fixed, text: Sequence[int], prompt: int, *, delays: bool = False) -> list[int | None]:
    """What is drafted at each position of `text` behind its first `prompt` tokens, if every token is verified."""
    drafter = CombinedDrafter(module, NgramDrafter(6, 1), module_delays_stages=delays)
    drafter.begin(text[:prompt], GREEDY, Start())
    made: list[int | None] = []
    for count in range(prompt, len(text)):
        draft = drafter.draft(text[:count])
        made.append(None if draft is None else draft.token)
        drafter.verified(text[: count + 1], count + 1)
    return made


def test_a_repeating_text_is_looked_up_and_the_module_is_soon_not_asked() -> None:
    asked = []
    for delays in (False, True):
        module = Fixed(50, 0.3)
        text = LOOP * 20
        assert drafts(module, text, 16, delays=delays)[-100:] == text[-100:]
        asked.append(module.asked)
    assert asked[1] < asked[0] < 40  # the more asking costs, the less it is done


def test_a_module_that_is_right_is_preferred_to_a_lookup_that_is_not() -> None:
    # The same three tokens are followed by something new every time; the module knows that 50 follows.
    text = [token for turn in range(40) for token in (1, 2, 3, 50, 100 + turn)]
    made = drafts(Fixed(50, 0.9), text, 10)
    assert [made[at] for at in range(3, len(made), 5)].count(50) == len(made) // 5


def test_an_overconfident_module_loses_its_say() -> None:
    text = LOOP * 20
    made = drafts(Fixed(50, 0.99), text, 16)
    assert made[-50:] == text[-50:]


def test_where_tokens_are_sampled_a_long_match_is_no_argument_against_an_unsure_module() -> None:
    found = []
    for sampling in (GREEDY, SAMPLED):
        drafter = CombinedDrafter(Fixed(50, 0.1), NgramDrafter(6, 1), module_delays_stages=False)
        drafter.begin(LOOP * 2, sampling, Start())
        draft = drafter.draft(LOOP * 2)
        found.append(None if draft is None else draft.token)
    assert found == [1, 50]


def test_without_a_match_the_module_is_asked_and_waited_for() -> None:
    assert drafts(Fixed(None, 0.0), list(range(20)), 5) == [None] * 15
    assert drafts(Fixed(7, 0.1), list(range(20)), 5) == [7] * 15


def test_candidates_of_both_are_kept_in_order() -> None:
    drafter = CombinedDrafter(Fixed(50, 0.1), NgramDrafter(6, 1), module_delays_stages=False)
    drafter.begin(LOOP * 2, GREEDY, Start())
    draft = drafter.draft(LOOP * 2)
    assert draft is not None
    assert draft.candidates == (1, 50, 99)


def test_guesses_behind_a_rejection_are_not_judged() -> None:
    drafter = CombinedDrafter(Fixed(50, 0.55), NgramDrafter(6, 1), module_delays_stages=False)
    drafter.begin([9], GREEDY, Start())
    for _ in range(30):
        drafter.draft([9, 8])
        drafter.draft([9, 8, 7])
        drafter.rejected(2, 1)  # the guess for position 3 was about another text
        drafter.verified([9, 8, 50], 3)
    draft = drafter.draft([9, 8])
    assert draft is not None
    assert draft.token == 50

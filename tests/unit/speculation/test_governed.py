"""A drafter that loses is not asked; what a grammar forces is drafted all the same."""

from collections.abc import Sequence

from speculation.decisions.governor import Governor
from speculation.drafters.base import Draft, Drafter
from speculation.drafters.governed import GovernedDrafter


class Always(Drafter):
    def __init__(self) -> None:
        self.heard: list[int] = []

    def verified(self, tokens: Sequence[int], count: int) -> None:
        self.heard.append(count)

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        return Draft((7,))


def test_it_is_silent_only_while_the_governor_is_quiet_and_goes_on_listening() -> None:
    governor, inner = Governor(2), Always()
    drafter = GovernedDrafter(inner, governor)
    silent, now = [], 0.0
    governor.begin()
    for count in range(2000):
        draft = drafter.draft([1])
        silent.append(draft is None)
        assert (draft is None) == (not governor.drafting)
        now += 0.1 if draft is None else 0.2
        governor.token(now, 2)
        drafter.verified([1] * count, count)
    assert 0 < sum(silent) < len(silent)
    assert inner.heard == list(range(2000))

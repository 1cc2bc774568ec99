"""A drafter that fails is silenced and counted; nothing it raises comes through."""

from collections.abc import Sequence

import pytest

from speculation.drafters.base import Answer, Draft, Drafter, Start
from speculation.drafters.guarded import GuardedDrafter
from workers.shared.messages import Sampling, Tap

SAMPLING = Sampling(seed=0)


class Fragile(Drafter):
    """Fails in the method that is named."""

    def __init__(self, breaks: str) -> None:
        self.breaks = breaks
        self.begun = 0

    def _reach(self, method: str) -> None:
        if method == self.breaks:
            raise RuntimeError(f"{method} has failed")

    def kept(self) -> int | None:
        self._reach("kept")
        return 7

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        self.begun += 1
        self._reach("begin")

    def verified(self, tokens: Sequence[int], count: int) -> None:
        self._reach("verified")

    def rejected(self, position: int, epoch: int) -> None:
        self._reach("rejected")

    def tap(self, tap: Tap) -> None:
        self._reach("tap")

    def advance(self) -> bool:
        self._reach("advance")
        return True

    def draft(self, tokens: Sequence[int]) -> Answer:
        self._reach("draft")
        return Draft((5,))


def one_request(drafter: GuardedDrafter) -> Answer:
    drafter.kept()
    drafter.begin([1], SAMPLING, Start())
    drafter.tap(Tap(0, 0, 0, 0, "float32", b""))
    drafter.advance()
    drafter.verified([1, 2], 2)
    drafter.rejected(1, 1)
    drafter.draft([1, 2])
    return drafter.draft([1, 2])


@pytest.mark.parametrize("method", ["begin", "verified", "rejected", "tap", "advance", "draft"])
def test_a_failure_anywhere_silences_the_drafter_until_the_next_request_and_at_last_for_good(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = Fragile(method)
    drafter = GuardedDrafter(inner)
    for failures in (1, 2, 3):
        assert one_request(drafter) is None
        assert drafter.failures == failures
        assert not drafter.advance()
        assert drafter.kept() == (0 if failures < 3 else None), "what it holds cannot be relied on"
    assert f"{method} has failed" in capsys.readouterr().err
    inner.breaks = ""
    assert one_request(drafter) is None
    assert (drafter.failures, inner.begun) == (3, 3), "it is not tried again"


def test_a_drafter_that_recovers_drafts_again() -> None:
    inner = Fragile("draft")
    drafter = GuardedDrafter(inner)
    assert one_request(drafter) is None
    inner.breaks = ""
    assert one_request(drafter) == Draft((5,))
    assert drafter.kept() == 7


def test_an_unreadable_account_of_what_is_kept_means_nothing_is() -> None:
    drafter = GuardedDrafter(Fragile("kept"))
    assert drafter.kept() == 0
    assert drafter.failures == 1

"""Times that are made up: what they are called, and that they pass."""

import time
from collections.abc import Sequence

import pytest

from speculation.drafters.base import Draft, Drafter, Start
from speculation.drafters.emulated import EmulatedDrafter
from workers.shared.emulation import Emulation, cost_of_rows
from workers.shared.messages import Sampling, Tap


def test_what_is_emulated_is_told_and_nothing_else() -> None:
    assert not Emulation()
    assert str(Emulation()) == "nothing"
    assert str(Emulation(stage_ms=5, link_ms=0.5)) == "stage 5 ms, link 0.5 ms"
    assert str(Emulation(stage_ms=5, row_cost=(1, 1.1))) == "stage 5 ms, rows 1, 1.1"
    assert str(Emulation(stage_ms=5, cascade_ms=(1, 2.5))) == "stage 5 ms, cascade 1, 2.5 ms"
    assert [Emulation(cascade_ms=(1, 2)).of_cascade(model) for model in (0, 1)] == [1, 2]
    assert Emulation(cascade_ms=(3,)).of_cascade(1) == 3
    assert Emulation().of_cascade(0) == 0
    assert all(Emulation(**{name: 1.0}) for name in Emulation.__struct_fields__)


def test_rows_between_those_that_are_known_lie_on_a_line() -> None:
    costs = [cost_of_rows((1, 1.2, 1.6), rows) for rows in (1, 2, 3, 4, 5, 128)]
    assert costs == pytest.approx([1, 1.2, 1.4, 1.6, 1.6, 1.6])
    assert cost_of_rows((), 8) == 1


def test_the_head_comes_on_top_of_the_last_stage() -> None:
    emulation = Emulation(stage_ms=5, head_ms=2)
    assert (emulation.of_stage(last=False), emulation.of_stage(last=True)) == (5, 7)


class Recording(Drafter):
    """Notes what it is told; drafts 7 after an even number of tokens."""

    anchors = (3, 5)

    def __init__(self) -> None:
        self.told: list[object] = []

    def kept(self) -> int | None:
        return 2

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        self.told.append(("begin", prompt, sampling, start))

    def verified(self, tokens: Sequence[int], count: int) -> None:
        self.told.append(("verified", tokens, count))

    def rejected(self, position: int, epoch: int) -> None:
        self.told.append(("rejected", position, epoch))

    def tap(self, tap: Tap) -> None:
        self.told.append(("tap", tap))

    def frames(self, width: int) -> None:
        self.told.append(("frames", width))

    def advance(self) -> bool:
        return True

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        return Draft((7,), 0.5) if len(tokens) % 2 == 0 else None


def test_an_emulated_drafter_is_the_drafter_later() -> None:
    inner = Recording()
    drafter = EmulatedDrafter(inner, 20.0)
    sampling, start, tap = Sampling(seed=1), Start(3, 4), Tap(0, 0, 0, 0, "float32", b"")
    drafter.begin([1], sampling, start)
    drafter.verified([1, 2], 2)
    drafter.rejected(4, 5)
    drafter.tap(tap)
    drafter.frames(4)
    expected = [("begin", [1], sampling, start), ("verified", [1, 2], 2), ("rejected", 4, 5), ("tap", tap)]
    assert inner.told == [*expected, ("frames", 4)]
    assert (drafter.anchors, drafter.kept(), drafter.advance()) == ((3, 5), 2, True)
    before = time.perf_counter()
    assert drafter.draft([1, 2]) == Draft((7,), 0.5)
    assert time.perf_counter() - before >= 0.02
    assert drafter.draft([1]) is None

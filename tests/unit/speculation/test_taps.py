"""The ledger of taps against a text that is written, rejected and written again, with taps that come when they like."""

from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.taps import TapLedger, columns_of_stages

CAPACITY = 60
STAGES = (0, 2, 3)


class Event(NamedTuple):
    """What happens next: a frame of so many rows, a verdict on the oldest, or a tap of some stage arrives."""

    kind: str
    number: int


EVENTS = st.lists(
    st.builds(
        Event, st.sampled_from(["frame", "verdict", "tap", "tap", "tap", "request", "deafen"]), st.integers(0, 9)
    ),
    max_size=80,
)


class Text:
    """A slot: every token has a version, and so has every hidden state that is sent."""

    def __init__(self) -> None:
        self.ledger = TapLedger(CAPACITY, STAGES)
        self.versions: list[int] = []  # of the text, drafts included
        self.held = {stage: [-1] * CAPACITY for stage in STAGES}
        self.under_way = {stage: deque[tuple[int, int, list[int]]]() for stage in STAGES}
        self.epoch = 0
        self.verified = 0
        self.clock = 0

    def frame(self, rows: int) -> None:
        position = len(self.versions)
        rows = min(rows, CAPACITY - position)
        if rows < 1:
            return
        self.clock += 1
        self.versions += [self.clock] * rows
        for waiting in self.under_way.values():
            waiting.append((self.epoch, position, self.versions[position:]))

    def verdict(self, right: int) -> None:
        """Some of what is not verified is right; what follows is wrong."""
        self.verified = min(self.verified + right, len(self.versions))
        if self.verified < len(self.versions):
            del self.versions[self.verified :]
            self.epoch += 1
            self.ledger.rejected(self.verified, self.epoch)

    def request(self, kept: int) -> None:
        """The next one takes over what it may, and that is never more than is held."""
        kept = min(kept, self.ledger.filled(), self.verified)
        del self.versions[kept:]
        self.verified = kept
        self.epoch += 1
        self.ledger.begin(self.epoch, kept)

    def tap(self, stage: int) -> None:
        if self.under_way[stage]:
            epoch, position, versions = self.under_way[stage].popleft()
            kept = self.ledger.place(stage, epoch, position, len(versions))
            self.held[stage][position : position + kept] = versions[:kept]

    def check(self) -> None:
        for stage in STAGES:
            filled = self.ledger.filled([stage])
            assert filled <= len(self.versions)
            assert self.held[stage][:filled] == self.versions[:filled], stage
        assert self.ledger.filled() == min(self.ledger.filled([stage]) for stage in STAGES)


@given(EVENTS)
def test_what_counts_as_held_is_of_the_text_as_it_stands_and_all_of_it_comes(events: list[Event]) -> None:
    text = Text()
    for event in events:
        if event.kind == "frame":
            text.frame(event.number)
        elif event.kind == "verdict":
            text.verdict(event.number)
        elif event.kind == "request":
            text.request(10 * event.number)
        elif event.kind == "deafen":
            text.ledger.deafen()
        else:
            text.tap(STAGES[event.number % len(STAGES)])
        text.check()
    deaf = text.ledger.deaf
    for stage in STAGES:
        while text.under_way[stage]:
            text.tap(stage)
    text.check()
    if not deaf:
        assert text.ledger.filled() == len(text.versions), "nothing that stands is missing"


def test_rows_behind_a_gap_are_of_no_use() -> None:
    ledger = TapLedger(CAPACITY, STAGES)
    ledger.begin(3, 0)
    assert ledger.place(0, 3, 4, 2) == 0
    assert ledger.place(0, 3, 0, 4) == 4
    assert ledger.place(0, 2, 4, 2) == 0, "of an earlier request"
    assert (ledger.filled([0]), ledger.filled()) == (4, 0)


def test_no_more_is_kept_than_there_is_room_for() -> None:
    ledger = TapLedger(5, [0])
    assert ledger.place(0, 0, 0, 9) == 5
    assert ledger.filled() == 5


@pytest.mark.parametrize(
    ("anchors", "split", "columns"),
    [
        ((2, 8, 13), (8, 8), {0: [0, 1], 1: [2]}),
        ((0, 3, 16), (4, 4, 8), {0: [1], 2: [2]}),
        ((16,), (8, 8, 0), {1: [0]}),
        ((0,), (4,), {}),
    ],
)
def test_a_hidden_state_is_of_the_stage_whose_layer_puts_it_out(
    anchors: tuple[int, ...], split: tuple[int, ...], columns: dict[int, list[int]]
) -> None:
    assert columns_of_stages(anchors, split) == columns

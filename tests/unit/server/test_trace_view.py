"""What a dashboard is told: everybody's frames, its own text only, and no more than it reads."""

import asyncio

import pytest

from server.engine.request_names import RequestNames
from server.engine.trace_feed import TooManyViewers, TraceFeed
from server.live.view import View
from workers.shared.frames import Frame
from workers.shared.live.events import Began, Ended, Entered, Left, Passed, TraceEvent, name_of
from workers.shared.live.messages import Trace

SECRET = 7


def told(*events: TraceEvent) -> list[list[object]]:
    view = View({"mine"}.__contains__, lambda token: f"<{token}>")
    rows: list[list[object]] = view.batch(Trace(list(events)))["events"]
    return rows


def test_text_is_told_of_own_requests_alone() -> None:
    rows = told(
        Began(1, 0, "mine", 5, 0),
        Began(2, 1, "theirs", 5, 3),
        Entered(3, 10, 0, 1, 5, 1, "certain", (SECRET,)),
        Entered(4, 11, 1, 1, 5, 1, "certain", (SECRET,)),
        Left(5, 10, 0, 6, (8, 9), 1, True, 2, "ngram"),
        Left(6, 11, 1, 6, (SECRET,), 0, False, 2, "ngram"),
    )
    assert rows == [
        ["began", 1, 0, 1, 5, 0, True],
        ["began", 2, 1, 2, 5, 3, False],
        ["entered", 3, 10, 0, 1, 5, 1, "certain", ["<7>"]],
        ["entered", 4, 11, 1, 1, 5, 1, "certain", None],
        ["left", 5, 10, 0, 6, 2, 1, True, 2, "ngram", ["<8>", "<9>"]],
        ["left", 6, 11, 1, 6, 1, 0, False, 2, "ngram", None],
    ]


def test_a_request_that_is_announced_again_keeps_its_number_and_the_next_in_its_slot_does_not() -> None:
    rows = told(
        Began(1, 0, "theirs", 5, 0),
        Began(2, 0, "theirs", 5, 0),
        Ended(3, 0, 4, 3, 1, 0, 9),
        Began(4, 0, "mine", 5, 0),
    )
    assert [row[3] for row in rows if row[0] == "began"] == [1, 1, 2]
    assert rows[2] == ["ended", 3, 0, 4, 3, 1, 0, 9]


def test_frames_of_which_no_beginning_was_heard_have_no_text() -> None:
    assert told(Entered(1, 2, 0, 1, 5, 1, "draft", (SECRET,)))[0][-1] is None
    assert told(Passed(1, 2, 1, 300, False)) == [["passed", 1, 2, 1, 300, False]]


def test_tokens_of_prompts_do_not_travel_and_names_are_whole_numbers_of_json() -> None:
    frame = Frame(2**62 + 5, 0, 1, 0, (SECRET, SECRET), wants_sample=False)
    entered = Entered.of(1, frame, "prompt")
    assert (entered.tokens, entered.width) == ((), 2)
    assert entered.frame == name_of(frame.index) < 2**53


def test_names_are_kept_while_there_is_room() -> None:
    names = RequestNames(kept=2)
    names.remember(["a", "b"], "one")
    names.remember(["c"], "two")
    assert [names.of(sequence) for sequence in "abcd"] == ["", "one", "two", ""]


def batch(first: int, count: int = 1) -> Trace:
    return Trace([Passed(at, 0, 0, 0, True) for at in range(first, first + count)])


async def test_a_viewer_that_does_not_read_loses_the_oldest_and_is_told() -> None:
    feed = TraceFeed()
    with feed.viewer() as slow, feed.viewer() as quick:
        seen: list[TraceEvent] = []
        for number in range(1000):
            feed.put(batch(2 * number, 2))
            found = await quick.get()
            assert found is not None
            assert found.lost == 0
            seen += found.events
        assert [event.at for event in seen] == list(range(2000))
        feed.end()
        lost = kept = 0
        while (found := await slow.get()) is not None:
            lost, kept = lost + found.lost, kept + len(found.events)
        assert lost + kept == 2000
        assert 0 < kept < 1000
    assert not feed.watched


async def test_a_viewer_waits_and_hears_of_the_end() -> None:
    feed = TraceFeed()
    with feed.viewer() as viewer:
        waiting = asyncio.create_task(viewer.get())
        await asyncio.sleep(0)
        feed.put(batch(5))
        assert await waiting == batch(5)
        waiting = asyncio.create_task(viewer.get())
        await asyncio.sleep(0)
        feed.end()
        assert await waiting is None


async def test_viewers_are_bounded() -> None:
    feed = TraceFeed()
    opened = [feed.viewer() for _ in range(16)]
    for viewer in opened:
        viewer.__enter__()
    with pytest.raises(TooManyViewers, match="16"), feed.viewer():
        pass
    opened[0].__exit__(None, None, None)
    with feed.viewer():
        assert feed.watched

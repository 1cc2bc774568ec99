"""What a stage does with frames, epochs and positions."""

import pytest

from workers.decisions.lookahead import Lookahead
from workers.shared.errors import OutOfStep
from workers.shared.frames import REAL, Frame, TreeFrame
from workers.shared.messages import Open, Rollback, Sample, Sampling


def frame(index: int, epoch: int, position: int, *tokens: int, sequence: int = 0) -> Frame:
    return Frame(index, sequence, epoch, position, tokens or (1,), True)


@pytest.fixture
def lookahead() -> Lookahead:
    stage = Lookahead("stage 3")
    stage.hear(Open(0, 0, 2, Sampling(seed=0)))
    return stage


def test_frames_come_out_in_announcement_order(lookahead: Lookahead) -> None:
    frames = [frame(0, 0, 0, 1, 2), frame(1, 0, 2), frame(2, 0, 3)]
    for message in frames:
        lookahead.hear(message)
    assert [lookahead.pop() for _ in range(4)] == [*frames, None]


def test_a_rollback_kills_what_is_queued_and_what_is_announced_late(lookahead: Lookahead) -> None:
    first = frame(0, 0, 0, 1, 2)
    lookahead.hear(first)
    assert lookahead.admit(first)
    lookahead.hear(Rollback(0, 1))
    late = frame(1, 0, 2)
    lookahead.hear(late)
    assert not lookahead.admit(late)


def test_a_frame_of_a_newer_epoch_kills_what_is_queued_before_it(lookahead: Lookahead) -> None:
    prompt = frame(0, 0, 0, 1, 2)
    lookahead.hear(prompt)
    assert lookahead.admit(prompt)
    queued = [frame(1, 0, 2, 7), frame(2, 0, 3), frame(3, 1, 2, 8), frame(4, 1, 3)]
    for message in queued:
        lookahead.hear(message)
    assert [lookahead.admit(message) for message in queued] == [False, False, True, True]


def test_only_the_newest_epoch_is_computed_and_it_may_start_anywhere_that_is_held(lookahead: Lookahead) -> None:
    held = frame(0, 0, 0, 1, 2, 3, 4)
    lookahead.hear(held)
    assert lookahead.admit(held)
    again = frame(1, 1, 2, 9)
    lookahead.hear(again)
    assert lookahead.admit(again)
    follower = frame(2, 1, 3)
    lookahead.hear(follower)
    assert lookahead.admit(follower)


def test_a_gap_is_fatal_and_says_where(lookahead: Lookahead) -> None:
    gap = frame(0, 0, 5)
    lookahead.hear(gap)
    with pytest.raises(OutOfStep, match=r"stage 3 got frame 0 \(sequence 0, epoch 0, positions 5..5\) of rank 0"):
        lookahead.admit(gap)


def test_a_new_request_holds_nothing_of_the_one_before(lookahead: Lookahead) -> None:
    first = frame(0, 0, 0, 1, 2)
    lookahead.hear(first)
    lookahead.admit(first)
    lookahead.hear(Open(0, 1, 1, Sampling(seed=0)))
    wrong = frame(1, 1, 2)
    lookahead.hear(wrong)
    with pytest.raises(OutOfStep):
        lookahead.admit(wrong)


def test_a_lost_announcement_is_fatal(lookahead: Lookahead) -> None:
    lookahead.hear(frame(4, 0, 0))
    with pytest.raises(OutOfStep, match="number 5 was next"):
        lookahead.hear(frame(6, 0, 1))


def test_the_last_stage_sees_a_rejection_before_rank_0_does(lookahead: Lookahead) -> None:
    first, wrong, behind = frame(0, 0, 0, 1, 2), frame(1, 0, 2, 7), frame(2, 0, 3, 8)
    for message in (first, wrong, behind):
        lookahead.hear(message)
    assert lookahead.admit(first)
    lookahead.sampled(first, Sample(0, 0, 2, (6,)))
    assert not lookahead.admit(wrong)
    assert not lookahead.admit(behind)
    corrected = frame(3, 1, 2, 6)
    lookahead.hear(corrected)
    assert lookahead.admit(corrected)


def test_an_accepted_draft_lives(lookahead: Lookahead) -> None:
    first, right = frame(0, 0, 0, 1, 2), frame(1, 0, 2, 6)
    for message in (first, right):
        lookahead.hear(message)
    assert lookahead.admit(first)
    lookahead.sampled(first, Sample(0, 0, 2, (6,)))
    assert lookahead.admit(right)


def test_after_a_frame_with_a_wrong_draft_in_it_everything_of_its_epoch_is_dead(lookahead: Lookahead) -> None:
    prompt, wide, behind = frame(0, 0, 0, 1, 2), frame(1, 0, 2, 6, 7, 8), frame(2, 0, 5, 9)
    for message in (prompt, wide, behind):
        lookahead.hear(message)
    assert lookahead.admit(prompt)
    lookahead.sampled(prompt, Sample(0, 0, 2, (6,)))
    assert lookahead.admit(wide)
    lookahead.sampled(wide, Sample(0, 0, 3, (7, 5)))
    assert not lookahead.admit(behind)
    corrected = frame(3, 1, 4, 5)
    lookahead.hear(corrected)
    assert lookahead.admit(corrected)


@pytest.mark.parametrize(("token", "alive"), [(9, True), (4, False)])
def test_after_a_frame_whose_drafts_were_right_the_last_token_decides(
    lookahead: Lookahead, token: int, alive: bool
) -> None:
    prompt, wide, behind = frame(0, 0, 0, 1, 2), frame(1, 0, 2, 6, 7), frame(2, 0, 4, 9)
    for message in (prompt, wide, behind):
        lookahead.hear(message)
    lookahead.admit(prompt)
    lookahead.sampled(prompt, Sample(0, 0, 2, (6,)))
    lookahead.admit(wide)
    lookahead.sampled(wide, Sample(0, 0, 3, (7, token)))
    assert lookahead.admit(behind) == alive


def test_a_request_may_begin_with_what_another_slot_holds_and_no_further(lookahead: Lookahead) -> None:
    held = frame(0, 0, 0, 1, 2, 3, 4)
    lookahead.hear(held)
    assert lookahead.admit(held)
    lookahead.hear(Open(1, 0, 9, Sampling(seed=0), 3, source=0))
    follower = frame(1, 0, 3, sequence=1)
    lookahead.hear(follower)
    assert lookahead.admit(follower)
    lookahead.hear(Open(2, 0, 9, Sampling(seed=0), 9, source=0))
    beyond = frame(2, 0, 5, sequence=2)
    lookahead.hear(beyond)
    with pytest.raises(OutOfStep, match=r"holds positions 0\.\.3 only"):
        lookahead.admit(beyond)


def test_what_is_not_kept_is_not_held(lookahead: Lookahead) -> None:
    held = frame(0, 0, 0, 1, 2, 3, 4)
    lookahead.hear(held)
    assert lookahead.admit(held)
    lookahead.hear(Rollback(0, 1, kept=2))
    late = frame(1, 1, 3)
    lookahead.hear(late)
    with pytest.raises(OutOfStep, match=r"holds positions 0\.\.1 only"):
        lookahead.admit(late)


def tree(
    index: int, epoch: int, tokens: str, *paths: tuple[int, ...], moves: tuple[tuple[int, int], ...] = ()
) -> Frame:
    """Rows behind positions 0 and 1, a letter each."""
    return TreeFrame(index, 0, epoch, 1 + len(paths[0]), tuple(map(ord, tokens)), True, moves, 2, paths)


def heard(lookahead: Lookahead, *frames: Frame) -> None:
    for message in frames:
        lookahead.hear(message)


def sample(position: int, tokens: str) -> Sample:
    return Sample(0, 0, position, tuple(map(ord, tokens)))


def test_the_last_stage_walks_from_the_newest_token_to_the_drafts_behind_it_and_past_all_others(
    lookahead: Lookahead,
) -> None:
    prompt = frame(0, 0, 0, 1, 2)
    drafts = tree(1, 0, "ab", (REAL,), (0,))
    more = tree(2, 0, "cde", (REAL, REAL), (0, 1), (0, 2))
    last = tree(3, 0, "f", (REAL, REAL, REAL))
    heard(lookahead, prompt, drafts, more, last)
    assert lookahead.admit(prompt)
    lookahead.sampled(prompt, sample(2, "b"))
    assert lookahead.admit(drafts)
    assert lookahead.first == 1
    lookahead.sampled(drafts, sample(3, "e"))
    assert lookahead.admit(more)
    assert lookahead.first == 2
    lookahead.sampled(more, sample(4, "x"))
    assert lookahead.admit(last), "only rank 0 knows that nothing else comes behind the newest token"
    assert lookahead.first is None


def test_all_drafts_wrong_kill_the_frame_that_holds_them_and_what_follows(lookahead: Lookahead) -> None:
    prompt = frame(0, 0, 0, 1, 2)
    frames = [tree(1, 0, "ab", (REAL,), (0,)), tree(2, 0, "c", (0, REAL)), frame(3, 1, 2, ord("x"))]
    heard(lookahead, prompt)
    assert lookahead.admit(prompt)
    lookahead.sampled(prompt, sample(2, "x"))
    heard(lookahead, *frames[:2])
    assert [lookahead.admit(message) for message in frames[:2]] == [False, False]
    heard(lookahead, frames[2])
    assert lookahead.admit(frames[2])
    assert lookahead.first == 0


def test_within_a_frame_the_walk_goes_on_and_all_wrong_drafts_kill_what_follows(lookahead: Lookahead) -> None:
    prompt = frame(0, 0, 0, 1, 2)
    two_levels = tree(1, 0, "abcd", (REAL,), (0,), (REAL, REAL), (0, 1))
    heard(lookahead, prompt, two_levels)
    assert lookahead.admit(prompt)
    lookahead.sampled(prompt, sample(2, "b"))
    assert lookahead.admit(two_levels)
    lookahead.sampled(two_levels, sample(3, "x"))
    follower = tree(2, 0, "e", (0, 1, REAL))
    heard(lookahead, follower)
    assert not lookahead.admit(follower)


def test_moves_are_made_by_dead_frames_too_and_the_newest_token_is_found_where_it_went(lookahead: Lookahead) -> None:
    prompt, drafts = frame(0, 0, 0, 1, 2), tree(1, 0, "ab", (REAL,), (0,))
    heard(lookahead, prompt, drafts)
    assert lookahead.admit(prompt)
    lookahead.sampled(prompt, sample(2, "b"))
    assert lookahead.admit(drafts)
    lookahead.sampled(drafts, sample(3, "c"))
    moving = TreeFrame(2, 0, 0, 3, (ord("c"),), True, ((0, 2),))
    heard(lookahead, moving)
    assert list(lookahead.moves(moving)) == [(0, 2)]
    assert lookahead.admit(moving)
    assert lookahead.first == 0
    lookahead.sampled(moving, sample(4, "d"))
    dead = TreeFrame(3, 0, 0, 4, (ord("x"),), True, ((5, 3),))
    heard(lookahead, dead)
    assert list(lookahead.moves(dead)) == [(5, 3)]
    assert not lookahead.admit(dead)


@pytest.mark.parametrize("end", [Rollback(0, 3, 2), Open(0, 3, 2, Sampling(seed=0), 2)])
def test_nothing_is_moved_once_the_request_has_ended(lookahead: Lookahead, end: Rollback | Open) -> None:
    late = TreeFrame(0, 0, 2, 3, (7,), True, ((0, 2),))
    heard(lookahead, late)
    assert list(lookahead.moves(late)) == [(0, 2)]
    lookahead.hear(end)
    assert list(lookahead.moves(late)) == []

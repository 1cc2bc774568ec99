"""The tree of drafts against one that is kept as a set of texts, and what the schedule makes frames of."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.decisions.drafts.tree import Draft, Node, Shoot, Tree
from speculation.decisions.drafts.worth import Acceptance
from speculation.decisions.policy import FramePolicy, draft_then_verify, pipelined
from speculation.decisions.schedule import Schedule
from tests.unit.speculation.pipeline_sim import PipelineSim, Request, plain
from workers.shared.frames import REAL, Frame, TokenPlace, TreeFrame
from workers.shared.messages import Sample


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), breadth=st.integers(1, 4))
def test_what_is_alive_are_the_texts_that_begin_with_what_was_verified(seed: int, breadth: int) -> None:
    rng = random.Random(seed)
    tree, texts, verified = Tree(100), set[str](), "r"
    tree.plant(ord("r"), 0)
    for _ in range(30):
        if rng.random() < 0.7 and len(tree.levels) < 6:
            pairs = list(itertools.product(tree.levels[-1], "abcd"))
            chosen = rng.sample(pairs, min(len(pairs), rng.randint(1, breadth)))
            tree.grow([Shoot(parent, ord(token)) for parent, token in chosen])
            if rng.random() < 0.5:
                tree.take(len(verified), len(verified))
            texts |= {verified + text(node) for node in tree.levels[-1]}
        else:
            root = tree.root
            assert root is not None
            token = rng.choice([*(chr(child.token) for child in root.children), "x"])
            before, child = len(texts), root.child(ord(token))
            verified += token
            texts = {text for text in texts if text.startswith(verified) and len(text) > len(verified)}
            if child is None:
                assert tree.plant(ord(token), len(verified) - 1) == before
                assert not texts
            else:
                assert tree.advance(child) == before - 1 - len(texts)
        alive = {verified + text(node) for level in list(tree.levels)[1:] for node in level}
        assert alive == texts
        assert tree.drafts == len(texts)
        held = [node.slot for level in tree.levels for node in level if node.slot != REAL]
        held += [slot for slot, _ in tree.moves]
        assert sorted([*held, *tree._free]) == list(range(100))
    assert tree.clear() == len(texts)
    assert len(tree._free) == 100


def text(node: Node) -> str:
    """The drafts on the way to a node."""
    letters = []
    while node.parent is not None:
        letters.append(chr(node.token))
        node = node.parent
    return "".join(reversed(letters))


def started(policy: FramePolicy) -> Schedule:
    """Two tokens of a prompt, and a first one, 3, that is on its way."""
    schedule = Schedule(0, 2, policy, 4, itertools.count())
    schedule.start([1, 2], 20)
    schedule.announce()
    schedule.sample(Sample(0, 0, 2, (3,)))
    (frame,) = schedule.announce() if policy.width == 1 else (None,)
    assert policy.width > 1 or type(frame) is Frame
    return schedule


def grow(schedule: Schedule, *drafts: tuple[int, int]) -> None:
    """A level: (index of a leaf, token) each."""
    leaves = schedule.leaves
    schedule.grow([Shoot(leaves[leaf], token) for leaf, token in drafts])


def test_of_drafts_at_one_position_the_first_has_its_row_and_a_chain_is_a_frame_as_ever() -> None:
    schedule = started(pipelined(2, 1, breadth=3))
    grow(schedule, (0, 4), (0, 5), (0, 6))
    (frame,) = schedule.announce()
    assert isinstance(frame, TreeFrame)
    assert (frame.position, frame.end, frame.base, frame.tokens) == (3, 4, 3, (4, 5, 6))
    assert [frame.place(row) for row in range(3)] == [
        TokenPlace(3),
        TokenPlace(3, frame.paths[1][0]),
        TokenPlace(3, frame.paths[2][0]),
    ]
    grow(schedule, (0, 7))
    (frame,) = schedule.announce()
    assert type(frame) is Frame, "it sees real rows only, as in a chain"
    assert (frame.position, frame.tokens) == (4, (7,))
    schedule = started(pipelined(2, 1, breadth=3))
    for token in (4, 5):
        grow(schedule, (0, token))
        assert [type(frame) for frame in schedule.announce()] == [Frame]


def test_a_right_draft_in_scratch_is_moved_by_the_next_frame_and_frames_of_dead_drafts_only_return_credits() -> None:
    schedule = started(pipelined(2, 1, breadth=2))
    grow(schedule, (0, 4), (0, 5))
    (drafts,) = schedule.announce()
    grow(schedule, (0, 6))
    (dead,) = schedule.announce()
    step = schedule.sample(Sample(0, 0, 3, (5,)))
    assert (list(step.tokens), len(step.right), step.rejected) == ([5], 1, False)
    assert (schedule.counts.moved, schedule.counts.drafted, schedule.counts.levels) == (1, 3, 2)
    assert (schedule.end, schedule.announced, len(schedule.in_flight)) == (4, 4, 2)
    grow(schedule, (0, 8), (0, 9))
    (frame,) = schedule.announce()
    assert isinstance(frame, TreeFrame)
    assert frame.moves == ((drafts.place(1).slot, 3),)
    assert (frame.base, frame.position) == (4, 4)
    step = schedule.sample(Sample(0, 0, 4, (8,)))
    assert (len(step.right), step.rejected) == (1, False)
    step = schedule.sample(Sample(0, 0, dead.end))
    assert (list(step.tokens), len(schedule.in_flight)) == ([], 1)
    assert schedule.counts.cycles == 2 + 1 + 1


def test_the_move_of_a_token_whose_followers_are_all_wrong_goes_with_the_token_that_replaces_them() -> None:
    schedule = started(pipelined(2, 1, breadth=2))
    grow(schedule, (0, 4), (0, 5))
    (drafts,) = schedule.announce()
    grow(schedule, (1, 6), (1, 7))
    schedule.announce()
    schedule.sample(Sample(0, 0, 3, (5,)))
    step = schedule.sample(Sample(0, 0, 4, (9,)))
    assert (step.rejected, schedule.epoch) == (True, 1)
    (frame,) = schedule.announce()
    assert (frame.epoch, frame.position, frame.tokens) == (1, 4, (9,))
    assert list(frame.committed) == [(drafts.place(1).slot, 3)]
    assert frame.branches is None
    counts = schedule.counts
    assert (counts.drafted, counts.accepted, counts.rejected, counts.discarded) == (4, 1, 1, 2)


def test_several_levels_travel_in_one_frame_and_are_verified_along_one_path() -> None:
    schedule = started(draft_then_verify(2, 2, breadth=2))
    grow(schedule, (0, 4), (0, 5))
    grow(schedule, (0, 6), (1, 7))
    (frame,) = schedule.announce()
    assert isinstance(frame, TreeFrame)
    assert (frame.position, frame.base, frame.tokens) == (2, 2, (3, 4, 5, 6, 7))
    lower = frame.paths[2][-1]
    assert frame.paths[:4] == ((REAL,), (REAL, REAL), (REAL, lower), (REAL, REAL, REAL))
    assert frame.paths[4][:2] == (REAL, lower)
    step = schedule.sample(Sample(0, 0, 3, (5, 7, 8)))
    assert (list(step.tokens), len(step.right)) == ([5, 7, 8], 2)
    assert schedule.counts.moved == 2
    schedule.flush()
    (frame,) = schedule.announce()
    assert len(frame.committed) == 2


def test_drafts_that_share_no_leaf_or_are_too_many_are_refused() -> None:
    schedule = started(pipelined(2, 1, breadth=2))
    leaf = schedule.leaves[0]
    for shoots in ([], [Shoot(leaf, token) for token in (4, 5, 6)]):
        with pytest.raises(ValueError, match="no such drafts"):
            schedule.grow(shoots)


def test_the_best_candidates_of_all_leaves_are_taken_whatever_leaf_they_are_behind() -> None:
    likely, unlikely = Node(1, 5, score=-0.1), Node(2, 5, score=-2.0)
    acceptance = Acceptance()
    first = Draft((10, 11, 12), 0.5, chances=(0.5, 0.3, 0.001))
    second = Draft((20, 21), 0.9, chances=(0.9, 0.05))
    best = acceptance.best([(likely, first), (unlikely, second)], 3)
    assert [(shoot.parent.token, shoot.token) for shoot in best] == [(1, 10), (1, 11), (2, 20)]
    blind = acceptance.best([(likely, Draft((10, 11)))], 2)
    assert [shoot.token for shoot in blind] == [10, 11]
    assert best[0].score > best[1].score > best[2].score


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("breadth", [2, 4])
def test_the_right_token_always_second_costs_nothing_once_there_are_two(stages: int, breadth: int) -> None:
    policy = pipelined(stages, breadth=breadth)
    sim = PipelineSim(stages, policy, acceptance=0.0, rng=random.Random(1), control=0.0)
    truth = [1, 2, 3, *plain([1, 2, 3], 60)]

    def second(leaf: Node) -> list[Shoot]:
        text = sim.schedule.text(leaf)
        right = truth[len(text)]
        return [Shoot(leaf, right + 1), Shoot(leaf, right)] if text == truth[: len(text)] else []

    sim._shoots = second  # type: ignore[method-assign]
    sim._rng.shuffle = lambda shoots: None  # type: ignore[method-assign, assignment]
    sim._rng.randint = lambda low, high: high  # type: ignore[method-assign, assignment]
    (outcome,) = sim.run([Request([1, 2, 3], 60)])
    assert outcome.tokens == plain([1, 2, 3], 60)
    assert sim.schedule.counts.rejected == 0
    assert sim.schedule.counts.moved == sim.schedule.counts.accepted > 50

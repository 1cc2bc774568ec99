"""What is drafted is what the method says: against a slow reference, over rounds that end anywhere."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from speculation.decisions.drafts.tree import Node, Shoot, Tree
from speculation.decisions.taps import columns_of_stages
from speculation.drafters.base import PENDING, Draft, Start
from speculation.drafters.heads.chain import ChainDrafter
from speculation.drafters.heads.parallel import ParallelDrafter
from speculation.drafters.heads.verified import VerifiedStatesDrafter
from speculation.heads.config import HeadConfig
from speculation.heads.network import EagleHead
from speculation.heads.runtime import HeadRuntime
from speculation.taps import TapBuffer
from tests.model.heads.made import DRAFT_IDS, PEAGLE, VARIANTS, random_head
from tests.model.heads.reference import Reference
from workers.prepare.tiny_model import HIDDEN, LAYERS, VOCABULARY
from workers.shared.messages import Sampling, Tap

CAPACITY = 300
SPLIT = (5, 4, 7)
ROUNDS = 50
DRAFTS = 4
GREEDY = Sampling(seed=0, temperature=0)


class Slot:
    """A drafter, and a pipeline that is played: random hidden states, and verdicts as the test wants them."""

    def __init__(self, head: EagleHead, seed: int = 0, scratch: int = 0) -> None:
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.columns = columns_of_stages(head.anchors, SPLIT)
        shape = (CAPACITY, len(head.anchors), HIDDEN)
        taps, runtime = TapBuffer(self.columns, shape, torch.float32, "cpu"), HeadRuntime(head, CAPACITY + 20, scratch)
        self.drafter: VerifiedStatesDrafter
        if head.config.parallel:
            self.drafter = ParallelDrafter(runtime, taps, VOCABULARY, head, 1, branches=scratch > 0)
        else:
            self.drafter = ChainDrafter(runtime, taps, VOCABULARY, branches=scratch > 0)
        self.drafter.frames(DRAFTS + 1)
        self.order = [head.anchors.index(index) for index in head.config.features]
        self.epoch = 0
        self.tokens: list[int] = []
        self.root = Node(0, -1)
        self.states = torch.zeros(0, len(head.anchors), HIDDEN)  # of the tokens that were computed and stand

    def begin(self, prompt: Sequence[int], reused: int = 0, source: "Slot | None" = None) -> None:
        self.tokens, self.root = list(prompt), Node(0, -1)
        self.states = (self if source is None else source).states[:reused]
        start = Start(self.epoch, reused, None, None if source is None else source.drafter)
        self.drafter.begin(prompt, GREEDY, start)
        for chunk in range(reused, len(prompt), 7):
            self.compute(len(prompt[chunk : chunk + 7]))()
        self.verify([self.rng.randrange(VOCABULARY)])
        while self.drafter.advance():
            pass

    def compute(self, rows: int):  # type: ignore[no-untyped-def]
        """A frame of so many tokens has been computed; returns what delivers its taps."""
        fresh, deliver = self.frame(rows)
        self.states = torch.cat([self.states, fresh])
        return deliver

    def frame(self, rows: int, index: int = -1):  # type: ignore[no-untyped-def]
        """Hidden states of a frame behind those that stand, and what delivers its taps."""
        position = len(self.states)
        fresh = torch.randn(rows, self.states.shape[1], HIDDEN, generator=self.generator)
        taps = [
            Tap(stage, 0, self.epoch, position, "float32", fresh[:, columns].contiguous().numpy().tobytes(), index)
            for stage, columns in self.columns.items()
        ]
        self.rng.shuffle(taps)

        def deliver() -> None:
            for tap in taps:
                self.drafter.tap(tap)

        return fresh, deliver

    def verify(self, tokens: Sequence[int], *, rejected: bool = False) -> None:
        """These follow the tokens that are verified; the last was drafted otherwise if `rejected`."""
        for place, token in enumerate(tokens, 1):
            if rejected and place == len(tokens):
                self.epoch += 1
                self.states = self.states[: len(self.tokens)]
                self.drafter.rejected(len(self.tokens), self.epoch)
            self.root = self.root.child(token) or Node(token, len(self.tokens))
            self.root.parent = None
            self.tokens.append(token)
            self.drafter.verified(self.tokens, len(self.tokens))

    def draft(self, drafts: Sequence[int]) -> Draft:
        (found,) = self.level([self.chain(drafts)])
        return found

    def level(self, leaves: Sequence[Node]) -> list[Draft]:
        count, found = len(self.tokens), []
        self.drafter.level(self.tokens, count, leaves)
        for leaf in leaves:
            answer = self.drafter.draft([*self.tokens, *(node.token for node in leaf.path(count))])
            assert isinstance(answer, Draft)
            found.append(answer)
        return found

    def chain(self, drafts: Sequence[int]) -> Node:
        """The last of these drafts; one that was there before is the same node, also once those before it are right."""
        node = self.root
        for token in drafts:
            if (child := node.child(token)) is None:
                child = Node(token, node.position + 1, node)
                node.children = [child]
            node = child
        return node

    def round(self, right: int) -> list[list[int]]:
        """A round in which `right` drafts are; returns the drafts' candidates."""
        found: list[Draft] = []
        drafts: list[int] = []
        for _ in range(DRAFTS):
            found.append(self.draft(drafts))
            drafts.append(found[-1].token)
        deliver = self.compute(DRAFTS + 1)
        late = self.rng.random() < 0.5
        if not late:
            deliver()
        known = len(self.tokens)
        correction = self.rng.randrange(VOCABULARY)
        wrong = right < DRAFTS and correction != drafts[right]
        self.verify([*drafts[:right], correction], rejected=wrong)
        if right < DRAFTS and not wrong:  # by chance it was right
            self.epoch += 1
            self.states = self.states[: len(self.tokens) - 1]
            self.drafter.rejected(len(self.tokens) - 1, self.epoch)
        if late:
            assert self.drafter.draft(self.tokens) is PENDING
            deliver()
        assert known == len(self.tokens) - right - 1
        return [list(draft.candidates) for draft in found]


def reference_of(head: EagleHead) -> Reference:
    return Reference(head.config, dict(head.state_dict()), head.draft_to_target.tolist())


def best(reference: Reference, logits: Tensor, count: int = 4) -> list[int]:
    return [reference.draft_ids[index] for index in logits.topk(count).indices]


@pytest.mark.parametrize("config", [*VARIANTS.values(), PEAGLE], ids=[*VARIANTS, "p-eagle"])
@torch.inference_mode()
def test_drafts_are_those_of_the_reference_whatever_is_rejected(config: HeadConfig) -> None:
    head = random_head(config)
    slot, reference = Slot(head), reference_of(head)
    slot.begin([slot.rng.randrange(VOCABULARY) for _ in range(20)])
    order = list(range(DRAFTS + 1)) * (ROUNDS // (DRAFTS + 1))
    slot.rng.shuffle(order)
    for number, right in enumerate(order):
        tokens, states = list(slot.tokens), slot.states[:, slot.order]
        assert len(states) == len(tokens) - 1
        found = slot.round(right)
        if number % 11:  # the reference is slow
            continue
        for place in range(DRAFTS):
            if config.parallel:
                logits = reference.parallel(tokens, states, place)
            else:
                logits = reference.chain(tokens, states, [candidates[0] for candidates in found[:place]])
            assert found[place][:4] == best(reference, logits), (number, place)
    assert len(slot.tokens) == 21 + sum(order) + len(order)


@pytest.mark.parametrize("config", [VARIANTS["plain"], VARIANTS["3.1"], VARIANTS["qwen3"], PEAGLE])
@torch.inference_mode()
def test_behind_each_branch_is_drafted_what_a_chain_of_its_own_would_be(config: HeadConfig) -> None:
    """Trees of random drafts, in rounds of which any path turns out right, with hidden states that come late or not."""
    head, breadth = random_head(config), 3
    scratch = (breadth - 1) * 2 * (DRAFTS + 1)
    slot, reference, tree = Slot(head, scratch=scratch), reference_of(head), Tree(scratch)
    rng = slot.rng
    slot.begin([rng.randrange(VOCABULARY) for _ in range(12)])
    for number in range(8):
        tree.plant(slot.tokens[-1], len(slot.tokens) - 1)
        states = slot.states[:, slot.order]
        for depth in range(DRAFTS):
            leaves, count = tree.levels[-1], len(slot.tokens)
            found = slot.level(leaves)
            for leaf, draft in zip(leaves, found, strict=True):
                if rng.random() < 0.7:  # the reference is slow
                    continue
                if config.parallel:
                    logits = reference.parallel(slot.tokens, states, depth)
                else:
                    logits = reference.chain(slot.tokens, states, [node.token for node in leaf.path(count)])
                assert list(draft.candidates[:4]) == best(reference, logits), (number, depth)
                assert len(draft.chances) == len(draft.candidates)
            shoots = [
                Shoot(leaf, token) for leaf, draft in zip(leaves, found, strict=True) for token in draft.candidates
            ]
            tree.grow(rng.sample(shoots, breadth))
        nodes = [node for level in tree.levels for node in level]
        slot.drafter.sent(number, nodes)
        fresh, deliver = slot.frame(len(nodes), number)
        late = number % 2
        if not late:
            deliver()
        path = rng.choice(tree.levels[rng.randrange(DRAFTS + 1)]).path(count)
        slot.states = torch.cat([slot.states, fresh[[0, *(nodes.index(node) for node in path)]]])
        for node in path:
            tree.advance(node)
        tree.take(len(slot.tokens), len(slot.tokens))  # stages have moved what was in scratch
        for node in path:
            slot.drafter.chosen(node, node.slot)
            slot.verify([node.token])
        correction = next(token for token in range(VOCABULARY) if tree.root is None or tree.root.child(token) is None)
        slot.verify([correction], rejected=True)
        if late:
            assert slot.drafter.draft(slot.tokens) is PENDING
            deliver()


@torch.inference_mode()
def test_where_stages_are_full_drafts_are_made_again_from_each_feature_that_arrives() -> None:
    """Frames of one token, three in flight: each draft follows from the newest feature, over the drafts since."""
    head = random_head(VARIANTS["plain"])
    slot, reference = Slot(head), reference_of(head)
    slot.begin([slot.rng.randrange(VOCABULARY) for _ in range(9)])
    drafts: list[int] = []
    for step in range(40):
        while len(drafts) < len(SPLIT):
            found = slot.draft(drafts)
            logits = reference.chain(slot.tokens, slot.states[:, slot.order][: len(slot.tokens) - 1], drafts)
            assert list(found.candidates[:4]) == best(reference, logits), step
            drafts.append(found.token)
        slot.compute(1)()
        if step % 7 == 3:
            slot.verify([(drafts[0] + 1) % VOCABULARY], rejected=True)
            drafts.clear()
        else:
            slot.verify([drafts.pop(0)])


@torch.inference_mode()
def test_drafts_of_one_pass_are_those_of_separate_passes_and_depend_on_no_draft() -> None:
    head = random_head(PEAGLE)
    slot, alone = Slot(head), Slot(head)
    prompt = list(range(50, 70))
    for one in (slot, alone):
        one.begin(prompt)
    alone.drafter.frames(1)
    for place in range(DRAFTS):
        others = [slot.rng.randrange(VOCABULARY) for _ in range(place)]
        together = slot.draft(others)
        separate = alone.draft(others)
        assert together.candidates == separate.candidates
        assert together.confidence == pytest.approx(separate.confidence, rel=1e-4)


@torch.inference_mode()
def test_a_prompt_that_begins_alike_is_not_computed_again_here_or_from_another_slot() -> None:
    head = random_head(VARIANTS["plain"])
    first, second, reference = Slot(head, 1), Slot(head, 2), reference_of(head)
    prompt = [first.rng.randrange(VOCABULARY) for _ in range(150)]
    first.begin(prompt)
    for right in (0, DRAFTS, 2):
        first.round(right)
    assert first.drafter.kept() is not None
    other = [*prompt[:100], *([7] * 30)]
    for slot, source in ((second, first), (first, None)):
        slot.epoch += 5
        slot.begin(other, 100, source)
        assert slot.drafter._runtime.cached >= 100
        states = slot.states[:, slot.order]
        assert list(slot.draft([]).candidates[:4]) == best(reference, reference.chain(slot.tokens, states, []))


@torch.inference_mode()
def test_what_an_earlier_engine_has_given_is_waited_for() -> None:
    head = random_head(VARIANTS["plain"])
    slot, reference = Slot(head), reference_of(head)
    slot.tokens = [slot.rng.randrange(VOCABULARY) for _ in range(12)]
    slot.drafter.begin(slot.tokens, GREEDY, Start(0))
    given = [slot.rng.randrange(VOCABULARY) for _ in range(5)]
    for token in given:
        slot.tokens.append(token)
        slot.drafter.verified(slot.tokens, len(slot.tokens))
    for _ in range(17):
        slot.compute(1)()
    slot.verify([9])
    while slot.drafter.advance():
        pass
    logits = reference.chain(slot.tokens, slot.states[:, slot.order], [])
    assert list(slot.draft([]).candidates[:4]) == best(reference, logits)


def test_a_head_with_a_draft_vocabulary_drafts_from_it_alone() -> None:
    slot = Slot(random_head(VARIANTS["plain"]))
    slot.begin([1, 2, 3])
    assert set(slot.draft([]).candidates) <= set(DRAFT_IDS)
    assert sum(SPLIT) == LAYERS

"""A cascade, whatever its processes and channels do, against decoding token by token."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.cascade.messages import OpenText, WriteText
from speculation.decisions.cascade.backoff import Backoff
from speculation.decisions.cascade.smaller import Smaller
from speculation.decisions.cascade.texts import Agreement, ModelText
from speculation.decisions.cascade.writer import CascadeWriter, Pacing
from tests.measure.cascade_laws import rate_bounds, tokens_per_step, window_share
from tests.unit.speculation.cascade_sim import SimulatedModel, Target, hear_from_smaller, model, tell
from workers.shared.cascade.figures import ModelFigures
from workers.shared.errors import OutOfStep
from workers.shared.messages import Sampling

CAPACITY = 60


class World:
    """A target and models below it, the smallest first."""

    def __init__(self, levels: int, slots: int, pacing: Pacing, agreement: float) -> None:
        self.models: list[SimulatedModel] = []
        for level in range(levels):
            below = self.models[-1] if self.models else None
            self.models.append(SimulatedModel(model(level, agreement), slots, CAPACITY, pacing, below))
        self.target = Target(model(99, agreement), slots, self.models[-1])
        self.slots = slots

    def kill(self, number: int) -> None:
        """A process ends; whoever takes its place begins with nothing."""
        self.models[number].killed()
        if number + 1 == len(self.models):
            self.target.lost()
        else:
            for end in self.models[number + 1].ends():
                end.lost()

    def tell(self) -> None:
        """The target says what is new."""
        tell(self.target.ends, self.models[-1])

    def settle(self) -> None:
        """Everybody but the target works until nothing is left to do."""
        while True:
            self.tell()
            busy = False
            for one in self.models:
                busy |= one.hear() or hear_from_smaller(one)
                for slot in range(self.slots):
                    busy |= one.step(slot)
                one.tell()
            busy |= self.target.hear()
            # Who did nothing else may still have said something, which somebody has to hear.
            if not busy and not any(one.down.messages or one.up.messages for one in self.models):
                return

    def assert_right(self) -> None:
        """The target's texts are those of plain decoding."""
        for prompt, text in zip(self.target.prompts, self.target.texts, strict=True):
            plain = list(prompt)
            while len(plain) < len(text):
                plain.append(self.target.following(plain))
            assert text.tokens == plain


@given(
    st.randoms(use_true_random=False),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 9),
    st.sampled_from([0, 0, 2]),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_whatever_happens_drafts_are_of_the_text_they_are_drafted_for(
    random: Random, levels: int, slots: int, lead: int, lookahead: int, agreement: float
) -> None:
    world = World(levels, slots, Pacing(lead, min(lookahead, lead)), agreement)
    for slot in range(slots):
        world.target.begin(slot, [random.randrange(50) for _ in range(random.randrange(1, 40))])
    for _ in range(150):
        one = random.choice(world.models)
        what = random.random()
        if what < 0.35:
            one.step(random.randrange(slots))
        elif what < 0.5:
            one.hear()
        elif what < 0.6:
            hear_from_smaller(one)
        elif what < 0.7:
            one.tell()
        elif what < 0.8:
            world.target.hear()
        elif what < 0.88:
            world.tell()
        elif what < 0.95:
            slot = random.randrange(slots)
            if len(world.target.texts[slot]) < CAPACITY:
                world.target.verify(slot, random.randrange(6))
        elif what < 0.98:
            world.kill(random.randrange(levels))
        else:  # of an earlier text, as a prompt often is
            earlier = random.choice(world.target.texts).tokens
            world.target.begin(random.randrange(slots), earlier[: random.randrange(1, len(earlier) + 1)])
    world.assert_right()
    world.settle()
    for text, end in zip(world.target.texts, world.target.ends, strict=True):
        # Wherever they were, all models come to be as far ahead as they may; sampling at a position takes those before.
        assert len(end.drafts()) == max(0, min(lead, CAPACITY + 1 - len(text)))


def test_models_that_agree_have_every_draft_accepted() -> None:
    world = World(3, 1, Pacing(8), 1.0)
    world.target.begin(0, [1, 2, 3])
    for _ in range(6):
        world.settle()
        world.target.verify(0, 8)
    world.assert_right()
    assert world.target.accepted == 48
    assert all(writer._figures.undone == 0 for one in world.models for writer in one.writers)


def test_one_model_at_a_time_writes_no_more_than_is_waited_for() -> None:
    world = World(2, 1, Pacing(3, 3), 1.0)
    small, middle = world.models
    small.connected = True  # from the start: without it nobody is waited for
    world.target.begin(0, [1, 2, 3])
    world.settle()
    assert len(world.target.ends[0].drafts()) == 3
    written = small.computed
    world.settle()
    assert small.computed == written, "the smallest works while the others have enough"
    world.target.verify(0, 3)
    world.settle()
    assert len(world.target.ends[0].drafts()) == 3
    assert middle.writers[0]._figures.plain == 0, "it has waited for drafts"


def opened(tokens: list[int], pacing: Pacing, *, smallest: bool = False) -> CascadeWriter:
    writer = CascadeWriter(0, 1000, pacing, ModelFigures("m"), smallest=smallest)
    writer.open(OpenText(0, 1, len(tokens), tokens, Sampling(seed=0)), 0)
    return writer


def test_a_model_that_lags_fills_what_it_has_not_computed_in_one_pass() -> None:
    writer = opened([1, 2, 3], Pacing(8), smallest=True)
    work = writer.work()
    assert work is not None
    assert (work.position, work.tokens) == (0, [1, 2, 3])
    writer.computed(work, [4])
    writer.heard(WriteText(0, 1, 3, [4, 5, 6, 7]))  # it is merely behind
    work = writer.work()
    assert work is not None
    assert (work.position, work.tokens, work.drafts) == (3, [4, 5, 6, 7], ())
    writer.computed(work, [9])
    writer.heard(WriteText(0, 1, 7, [8]))  # it was wrong
    assert writer.text.tokens == [1, 2, 3, 4, 5, 6, 7, 8]
    assert writer.news() == WriteText(0, 1, 3, [4, 5, 6, 7, 8])
    work = writer.work()
    assert work is not None
    assert (work.position, work.tokens) == (7, [8])


def test_a_long_gap_is_filled_in_pieces_so_that_news_are_heard_meanwhile() -> None:
    writer = opened(list(range(100)), Pacing(8), smallest=True)
    sizes = []
    while (work := writer.work()) is not None:
        sizes.append((len(work.tokens), work.samples))
        writer.computed(work, [0] if work.samples else ())
        if work.samples:
            break
    assert sizes == [(32, False), (32, False), (32, False), (4, True)]


def test_words_about_an_earlier_request_mean_nothing() -> None:
    writer = opened([1, 2, 3], Pacing(8), smallest=True)
    writer.open(OpenText(0, 2, 1, [7], Sampling(seed=0)), 0)
    writer.heard(WriteText(0, 1, 3, [4]))
    assert writer.text.tokens == [7]
    end = Smaller(0)
    end.open(ModelText([1, 2]), 2, Sampling(seed=0))
    first = end.news()
    assert isinstance(first, OpenText)
    end.open(ModelText([5]), 1, Sampling(seed=0))
    end.heard(WriteText(0, first.number, 2, [3]))
    assert list(end.drafts()) == []
    assert isinstance(end.news(), OpenText)
    end.heard(WriteText(0, first.number, 2, [3]))
    assert list(end.drafts()) == []


def test_a_hole_in_a_text_is_an_error() -> None:
    writer = opened([1, 2, 3], Pacing(8), smallest=True)
    with pytest.raises(OutOfStep, match="a text of 3 tokens was to be written from position 5 on"):
        writer.heard(WriteText(0, 1, 5, [4]))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.lists(st.integers(0, 1), max_size=4)), max_size=30))
def test_how_far_two_texts_agree(writes: list[tuple[bool, int, list[int]]]) -> None:
    texts = ModelText(), ModelText()
    agreement = Agreement(*texts)
    for which, back, tokens in writes:
        text = texts[which]
        text.write(max(0, len(text) - back), tokens)
        pairs = list(zip(texts[0].tokens, texts[1].tokens, strict=False))
        expected = next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs))
        assert agreement.reach() == expected


def test_a_process_that_keeps_failing_is_started_ever_later_and_one_that_worked_soon() -> None:
    backoff = Backoff()
    assert [backoff.after(1.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(100.0) == 0.5
    assert backoff.after(1.0) == 1


@pytest.mark.parametrize(("acceptance", "drafts"), [(0.0, 5), (0.5, 3), (0.8, 8), (0.95, 20), (1.0, 4)])
def test_the_closed_form_is_what_the_two_states_of_a_verifier_come_to(acceptance: float, drafts: int) -> None:
    random, found, steps, finds, tokens = Random(1), False, 200_000, 0, 0
    for _ in range(steps):
        finds += found
        if found:
            right = next((place for place in range(drafts) if random.random() >= acceptance), drafts)
            # The verifier's own token has to be what was drafted meanwhile, too.
            found = right == drafts and random.random() < acceptance
            tokens += right + 1
        else:
            found = random.random() < acceptance
            tokens += 1
    if acceptance in (0.0, 1.0):
        assert finds / steps == pytest.approx(acceptance, abs=1e-3)
    else:
        assert finds / steps == pytest.approx(window_share(acceptance, drafts), abs=0.01)
    assert tokens / steps == pytest.approx(tokens_per_step(acceptance, drafts), rel=0.02)


def test_a_pair_is_bound_by_the_slower_of_its_two_sides() -> None:
    bounds = rate_bounds(tokens=5.0, step_seconds=0.1, surviving=0.4, draft_seconds=0.01)
    assert (bounds.verifier, bounds.drafter) == (50.0, 40.0)

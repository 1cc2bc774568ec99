"""Stand-ins around the parts of a stage: what is accepted by chance, and when a frame is due."""

import time

import pytest
import torch
from torch import Tensor

from workers.decisions.made_up import MadeUpText
from workers.rehearsal.by_chance import TailByChance
from workers.rehearsal.paced import Pace, PacedLayers, PacedTail
from workers.shared.frames import REAL, Frame, TreeFrame
from workers.shared.messages import Open, Sample, Sampling, StageTimings

VOCABULARY = 50
HIDDEN = torch.zeros(3, 4)


class Sampler:
    """A tail that samples 0 after every row it is given."""

    def __init__(self) -> None:
        self.rows: list[int] = []  # positions

    def open(self, message: Open) -> None:
        pass

    def prepare(self) -> None:
        pass

    def finish(self, frame: Frame, hidden: Tensor, first: int | None = 0) -> Sample:
        if not frame.wants_sample:
            return Sample(frame.sequence, frame.epoch, frame.end)
        self.rows.append(frame.end)
        return Sample(frame.sequence, frame.epoch, frame.end, (0,))


def frame(index: int, epoch: int, position: int, *tokens: int, sequence: int = 0, wants_sample: bool = True) -> Frame:
    return Frame(index, sequence, epoch, position, tokens, wants_sample)


@pytest.mark.parametrize(
    ("acceptance", "rescue", "hits"), [(0.82, 0.42, (0.82, 0.896, 0.939)), (0.5, 0.0, (0.5, 0.5, 0.5))]
)
def test_the_token_of_the_text_is_among_its_candidates_as_often_as_was_asked_for(
    acceptance: float, rescue: float, hits: tuple[float, ...]
) -> None:
    text, count, found = MadeUpText(VOCABULARY, acceptance, rescue), 20_000, [0, 0, 0]
    hoped = 0.0
    for position in range(count):
        guess, token = text.guess(position, 7), text.token(position, 7)
        assert len(set(guess.candidates)) == len(guess.candidates) == len(guess.chances)
        hoped += guess.chances[0]
        for place, width in enumerate((1, 2, 4)):
            found[place] += token in guess.candidates[:width]
    assert [hit / count for hit in found] == pytest.approx(hits, abs=0.015)
    assert hoped / count == pytest.approx(acceptance, abs=0.015)


def test_output_is_the_text_and_the_walk_follows_it() -> None:
    sampler, text = Sampler(), MadeUpText(VOCABULARY, 0.8, 0.4)
    tail = TailByChance(sampler, text)
    tail.open(Open(0, 0, 2, Sampling(seed=0)))
    assert tail.finish(frame(0, 0, 0, 4, wants_sample=False), HIDDEN).tokens == ()
    assert tail.finish(frame(1, 0, 1, 5), HIDDEN).tokens == (text.token(2, 5),)
    first = text.token(3, 6)
    second = text.token(4, first)
    sampler.rows.clear()
    assert tail.finish(frame(2, 0, 2, 6, first, second), HIDDEN).tokens == (first, second, text.token(5, second))
    assert sampler.rows == [3, 4, 5]
    wrong = (first + 1) % VOCABULARY
    assert tail.finish(frame(3, 0, 2, 6, wrong, second), HIDDEN).tokens == (first,)
    tree = TreeFrame(4, 0, 0, 3, (wrong, first, second), True, (), 3, ((REAL,), (0,), (0, REAL)))
    sample = tail.finish(tree, HIDDEN, 1)
    assert (sample.position, sample.tokens) == (4, (second, text.token(5, second)))
    nothing = tail.finish(tree, HIDDEN, None)
    assert (nothing.position, nothing.tokens) == (tree.end, ())


class Instant:
    """Layers that take no time."""

    hidden_size, dtype, device, weight_bytes, kv_bytes = 4, torch.float32, torch.device("cpu"), 0, 0

    def observe(self, *_: object) -> None:
        pass

    copy = release = move = observe

    def forward(self, *_: object) -> Tensor:
        return HIDDEN

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    row_logits = logits


@pytest.mark.parametrize("last", [False, True])
def test_a_frame_is_handed_on_when_it_is_due_and_the_time_asleep_is_told_apart(last: bool) -> None:
    timings, pace = StageTimings(), Pace(20)
    layers = PacedLayers(Instant(), pace, timings, sleeps=not last)
    tail = PacedTail(Sampler(), pace, timings)
    began = time.perf_counter()
    layers.forward(0, 0, (1,), None)
    if last:
        tail.finish(frame(0, 0, 0, 1), HIDDEN)
    assert time.perf_counter() - began >= 0.02
    assert timings.emulate_ns > 0
    assert timings.emulate_ns == -(timings.sample_ns if last else timings.forward_ns)

"""Stand-ins around the parts of a stage: what is accepted by chance, and when a frame is due."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from workers.rehearsal.by_chance import EavesdroppingChannel, TailByChance
from workers.rehearsal.paced import Pace, PacedLayers, PacedTail
from workers.shared.frames import Frame
from workers.shared.messages import FromStage, Open, Ping, Rollback, Sample, Sampling, StageTimings, ToStage

VOCABULARY = 50
HIDDEN = torch.zeros(3, 4)


@dataclass
class Wire:
    """A channel whose messages a test puts there."""

    arrived: list[ToStage] = field(default_factory=list)

    def heard(self, *, wait: bool) -> Iterator[ToStage]:
        arrived, self.arrived = self.arrived, []
        yield from arrived

    def report(self, message: FromStage) -> None:
        raise AssertionError("nothing is to be reported here")


class Sampler:
    """A tail that samples 0 after every row it is given."""

    def __init__(self) -> None:
        self.rows: list[int] = []  # positions

    def open(self, message: Open) -> None:
        pass

    def prepare(self) -> None:
        pass

    def finish(self, frame: Frame, hidden: Tensor) -> Sample:
        if not frame.wants_sample:
            return Sample(frame.sequence, frame.epoch, frame.end)
        self.rows.append(frame.end)
        return Sample(frame.sequence, frame.epoch, frame.end, (0,))


def frame(index: int, epoch: int, position: int, *tokens: int, sequence: int = 0, wants_sample: bool = True) -> Frame:
    return Frame(index, sequence, epoch, position, tokens, wants_sample)


def test_a_follower_is_the_draft_for_the_next_position_of_the_same_epoch_and_what_is_overheard_is_not_lost() -> None:
    wire = Wire()
    channel = EavesdroppingChannel(wire)
    first = frame(0, 0, 0, 1, 2)
    wire.arrived = [Ping(1), first]
    assert list(channel.heard(wait=True)) == [Ping(1), first]
    assert channel.follower(first) is None
    other, follower, rollback = frame(1, 0, 2, 5, sequence=1), frame(2, 0, 2, 9), Rollback(0, 1)
    wire.arrived = [other, follower]
    assert channel.follower(first) == 9
    wire.arrived = [rollback]
    assert list(channel.heard(wait=True)) == [other, follower, rollback]
    assert channel.follower(frame(3, 1, 0, 1, 2)) is None, "of an older epoch"


@pytest.mark.parametrize(("acceptance", "expected"), [(1.0, (7, 8, 9)), (0.0, (8,))])
def test_drafts_in_a_frame_and_behind_it_are_taken_by_chance(acceptance: float, expected: tuple[int, ...]) -> None:
    wire, sampler = Wire(), Sampler()
    channel = EavesdroppingChannel(wire)
    tail = TailByChance(sampler, channel, VOCABULARY, acceptance)
    tail.open(Open(0, 0, 2, Sampling(seed=0)))
    wire.arrived = [frame(2, 0, 5, 9)]
    sample = tail.finish(frame(1, 0, 2, 6, 7, 8), HIDDEN)
    assert (sample.position, sample.tokens) == (3, expected)
    assert sampler.rows == list(range(3, 3 + len(expected)))


def test_without_a_draft_the_sample_is_what_was_sampled() -> None:
    wire, sampler = Wire(), Sampler()
    tail = TailByChance(sampler, EavesdroppingChannel(wire), VOCABULARY, 1.0)
    tail.open(Open(0, 0, 3, Sampling(seed=0)))
    assert tail.finish(frame(0, 0, 0, 4, wants_sample=False), HIDDEN).tokens == ()
    assert tail.finish(frame(1, 0, 1, 4, 5), HIDDEN).tokens == (0,)
    assert tail.finish(frame(2, 0, 3, 4), HIDDEN).tokens == (0,)


class Instant:
    """Layers that take no time."""

    hidden_size, dtype, device, weight_bytes, kv_bytes = 4, torch.float32, torch.device("cpu"), 0, 0

    def observe(self, *_: object) -> None:
        pass

    copy = release = observe

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

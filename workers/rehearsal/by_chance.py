"""Drafts are accepted by chance, whatever the logits say: to rehearse an acceptance that no drafter has yet earned."""

import random
from collections import defaultdict
from collections.abc import Iterator

import msgspec
from torch import Tensor

from workers.shared.frames import Frame
from workers.shared.messages import Open, Sample, ToStage
from workers.stage.parts import Channel, SamplingHead


class EavesdroppingChannel:
    """Wraps a stage's channel: what it will hear next can be known before it listens."""

    def __init__(self, channel: Channel) -> None:
        self.report = channel.report
        self._channel = channel
        self._ahead: list[ToStage] = []  # heard here, not yet by the stage
        self._announced: dict[int, dict[int, Frame]] = defaultdict(dict)  # by sequence and position: the newest frame

    def heard(self, *, wait: bool) -> Iterator[ToStage]:
        """See `Channel`."""
        if self._ahead:
            ahead, self._ahead = self._ahead, []
            yield from ahead
            wait = False
        for message in self._channel.heard(wait=wait):
            self._note(message)
            yield message

    def follower(self, frame: Frame) -> int | None:
        """The draft that is announced by now for the position after `frame`, if any."""
        for message in self._channel.heard(wait=False):
            self._note(message)
            self._ahead.append(message)
        announced = self._announced[frame.sequence]
        for position in [position for position in announced if position < frame.end]:
            del announced[position]
        later = announced.get(frame.end)
        return later.tokens[0] if later is not None and later.epoch == frame.epoch else None

    def _note(self, message: ToStage) -> None:
        if isinstance(message, Frame):
            self._announced[message.sequence][message.position] = message
        elif isinstance(message, Open):
            self._announced[message.sequence].clear()


class TailByChance:
    """Wraps a tail: a draft becomes the sample with a given probability, and otherwise another token does."""

    def __init__(self, tail: SamplingHead, channel: EavesdroppingChannel, vocab_size: int, acceptance: float) -> None:
        self.prepare = tail.prepare
        self._tail = tail
        self._channel = channel
        self._vocab_size = vocab_size
        self._acceptance = acceptance
        self._prompt_tokens: dict[int, int] = {}  # by sequence

    def open(self, message: Open) -> None:
        """See `SamplingHead`."""
        self._prompt_tokens[message.sequence] = message.prompt_tokens
        self._tail.open(message)

    def finish(self, frame: Frame, hidden: Tensor) -> Sample:
        """See `SamplingHead`. Output is sampled row by row: chance says whether the next row counts."""
        if not frame.wants_sample or frame.position < self._prompt_tokens[frame.sequence]:
            sample = self._tail.finish(frame, hidden)
            return self._decide(sample, self._channel.follower(frame)) if sample.tokens else sample
        sample = Sample(frame.sequence, frame.epoch, frame.position + 1)
        for row, token in enumerate(frame.tokens):
            position = frame.position + row
            piece = msgspec.structs.replace(frame, position=position, tokens=(token,))
            sampled = self._tail.finish(piece, hidden[row : row + 1])
            last = row == len(frame.tokens) - 1
            draft = self._channel.follower(frame) if last else frame.tokens[row + 1]
            sampled = self._decide(sampled, draft) if sampled.tokens else sampled
            sample = msgspec.structs.replace(
                sample,
                tokens=sample.tokens + sampled.tokens,
                logprobs=sample.logprobs + sampled.logprobs,
                error=sampled.error,
                probabilities=sample.probabilities + sampled.probabilities,
            )
            if sampled.tokens != (draft,):
                break
        return sample

    def _decide(self, sample: Sample, draft: int | None) -> Sample:
        """`sample`, its only token replaced where something is drafted in its place."""
        if draft is None:
            return sample
        accepted = random.Random(sample.position).random() < self._acceptance
        return msgspec.structs.replace(sample, tokens=(draft if accepted else (draft + 1) % self._vocab_size,))

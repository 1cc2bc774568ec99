"""Drafts are accepted by chance, whatever the logits say: to rehearse an acceptance that no drafter has yet earned."""

import msgspec
from torch import Tensor

from workers.decisions.made_up import MadeUpText
from workers.shared.frames import Frame
from workers.shared.messages import Open, Sample
from workers.stage.parts import SamplingHead


class TailByChance:
    """Wraps a tail: what is sampled is a made-up text, of which drafters know something."""

    def __init__(self, tail: SamplingHead, text: MadeUpText) -> None:
        self.prepare = tail.prepare
        self._tail = tail
        self._text = text
        self._prompt_tokens: dict[int, int] = {}  # by sequence

    def open(self, message: Open) -> None:
        """See `SamplingHead`."""
        self._prompt_tokens[message.sequence] = message.prompt_tokens
        self._tail.open(message)

    def finish(self, frame: Frame, hidden: Tensor, first: int | None = 0) -> Sample:
        """See `SamplingHead`. Output is sampled row by row: the text says whether the next row counts."""
        if not frame.wants_sample or frame.position < self._prompt_tokens[frame.sequence]:
            sample = self._tail.finish(frame, hidden, first)
            return self._replaced(sample, frame.tokens[-1]) if sample.tokens else sample
        row = first
        if row is None:
            return Sample(frame.sequence, frame.epoch, frame.end)
        sample = Sample(frame.sequence, frame.epoch, frame.place(row).position + 1)
        while row is not None:
            token, position = frame.tokens[row], frame.place(row).position
            piece = Frame(frame.index, frame.sequence, frame.epoch, position, (token,), frame.wants_sample)
            sampled = self._tail.finish(piece, hidden[row : row + 1])
            sampled = self._replaced(sampled, token) if sampled.tokens else sampled
            sample = msgspec.structs.replace(
                sample,
                tokens=sample.tokens + sampled.tokens,
                logprobs=sample.logprobs + sampled.logprobs,
                error=sampled.error,
                probabilities=sample.probabilities + sampled.probabilities,
            )
            row = frame.follower(frame.place(row), sampled.tokens[0]) if sampled.tokens else None
        return sample

    def _replaced(self, sample: Sample, before: int) -> Sample:
        """`sample` with the text's token in the place of its only one, which follows `before`."""
        return msgspec.structs.replace(sample, tokens=(self._text.token(sample.position, before),))

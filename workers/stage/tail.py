"""The end of the pipeline: LM head and sampler of the last stage, with the tokens that each sample must see.

The last stage samples every position exactly as plain decoding would ("sampled verification", docs/design.md), so a
draft is accepted if and only if it equals the sample, and speculation cannot change the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.frames import Frame
from workers.shared.grammar import GrammarFailed, GrammarMatcher, Grammars
from workers.shared.messages import Open, Sample, Sampling, TokenLogprobs
from workers.stage.parts import Layers
from workers.stage.prompt_scores import PromptScores


class _Ahead(NamedTuple):
    """What was worked out for a position before its frame came."""

    position: int
    allowed: Tensor | None  # the grammar's mask
    noise: Tensor | None


@dataclass
class _Slot:
    sampling: Sampling
    history: History
    matcher: GrammarMatcher | None
    scores: PromptScores | None = None  # if the request asked for them
    ahead: _Ahead | None = None

    def write(self, position: int, tokens: tuple[int, ...]) -> None:
        """Overwrites everything from `position` on. A frame lies in the prompt or in the output, never in both."""
        history = self.history
        if history.tokens[position:] == list(tokens):
            return  # the newest sample's own frame, as foreseen
        self.ahead = None
        history.write(position, tokens)
        if self.matcher is not None and position >= history.prompt_tokens:
            self.matcher.write(position - history.prompt_tokens, tokens)


class Tail:
    """Head, sampler and token history of every sequence slot."""

    def __init__(self, layers: Layers, sampler: Sampler, grammars: Grammars | None = None) -> None:
        """`layers` has the LM head. Without `grammars`, requests that have one fail."""
        self._layers = layers
        self._grammars = grammars
        self._sampler = sampler
        self._slots: dict[int, _Slot] = {}
        self._newest: Sample | None = None  # the last one with tokens, until its follower is prepared

    def open(self, message: Open) -> None:
        """A new request takes a slot over."""
        sampling = message.sampling
        matcher = None
        if sampling.grammar is not None and self._grammars is not None:
            matcher = GrammarMatcher(self._grammars, sampling.grammar)
        before = self._slots.get(message.holder)
        prompt = [] if before is None else before.history.tokens[: message.reused]
        wanted = sampling.prompt_logprobs
        scores = None if wanted is None else PromptScores(self._layers, wanted)
        history = History(message.prompt_tokens, sampling, prompt)
        self._slots[message.sequence] = _Slot(sampling, history, matcher, scores)
        self._newest = None

    def finish(self, frame: Frame, hidden: Tensor, first: int | None = 0) -> Sample:
        """Samples after a live frame whose hidden states are `hidden` `[T, H]`.

        That is after the prompt's last token, or after row `first`, which holds the newest verified token, and then
        after each row that holds what was sampled before it. The head is read once for all rows that may come to that;
        the sampler walks over them, each with the tokens before it. None: no row is behind what was verified.
        """
        slot = self._slots[frame.sequence]
        in_prompt = frame.position < slot.history.prompt_tokens
        if in_prompt or not frame.wants_sample:
            slot.write(frame.position, frame.tokens)
            first = len(frame.tokens) - 1 if frame.wants_sample else None
        start = frame.end if first is None else frame.place(first).position + 1
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        probabilities: list[float] = []
        error: str | None = None
        rows = () if first is None else frame.reachable(first)
        scores = dict(zip(rows, self._layers.row_logits(_rows(hidden, rows)), strict=True)) if rows else {}
        row = first
        while row is not None:
            position = start + len(tokens)
            slot.write(position - 1, frame.tokens[row : row + 1])
            try:
                allowed, noise = self._foreseen(slot, position)
                sampled = self._sampler.sample(scores[row], slot.sampling, position, slot.history, allowed, noise)
            except GrammarFailed as failure:
                error = str(failure)
                break
            tokens.append(sampled.token)
            if sampled.logprobs is not None:
                logprobs.append(sampled.logprobs)
            if sampled.probability is not None:
                probabilities.append(sampled.probability)
            row = frame.follower(frame.place(row), sampled.token)
        sample = Sample(
            frame.sequence,
            frame.epoch,
            start,
            tuple(tokens),
            tuple(logprobs),
            error,
            tuple(probabilities),
            slot.scores.add(frame, hidden) if slot.scores is not None and in_prompt else (),
        )
        if tokens and error is None:
            self._newest = sample
        return sample

    def prepare(self) -> None:
        """Works ahead for the position after the newest sample, while nobody waits for it.

        That token is verified: whatever the frames behind it turn out to be, the next one that is alive begins with it.
        """
        sample, self._newest = self._newest, None
        if sample is None:
            return
        slot = self._slots[sample.sequence]
        slot.write(sample.end - 1, sample.tokens[-1:])
        try:
            allowed, noise = self._foreseen(slot, sample.end)
        except GrammarFailed:
            return  # it will say so again, where there is somebody to hear it
        slot.ahead = _Ahead(sample.end, allowed, noise)

    def _foreseen(self, slot: _Slot, position: int) -> tuple[Tensor | None, Tensor | None]:
        """What sampling at `position`, behind the history, needs beside logits; raises `GrammarFailed`."""
        if slot.ahead is not None and slot.ahead.position == position:
            return slot.ahead.allowed, slot.ahead.noise
        permitted = self._permitted(slot)
        mask = None if permitted is None else self._sampler.mask(permitted)
        return mask, self._sampler.noise(slot.sampling, position)

    @staticmethod
    def _permitted(slot: _Slot) -> bytes | None:
        """The tokens that the grammar permits next; None for all of them. Raises `GrammarFailed`."""
        if slot.matcher is not None:
            return slot.matcher.allowed()
        if slot.sampling.grammar is not None:
            raise GrammarFailed("this engine has no grammars: the model folder holds no tokenizer.json")
        return None


def _rows(hidden: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows of `hidden` `[T, H]`, as a view where they follow each other."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return hidden[rows[0] : rows[-1] + 1]
    return hidden[list(rows)]

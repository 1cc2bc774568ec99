"""The end of the pipeline: LM head and sampler of the last stage, with the tokens that each sample must see.

The last stage samples every position exactly as plain decoding would ("sampled verification", docs/design.md), so a
draft is accepted if and only if it equals the sample, and speculation cannot change the output.
"""

from dataclasses import dataclass, field

from torch import Tensor

from workers.sampling.sampler import Sampler
from workers.shared.frames import Frame
from workers.shared.grammar import GrammarFailed, GrammarMatcher, Grammars
from workers.shared.messages import Open, Sample, Sampling, TokenLogprobs
from workers.stage.parts import Layers
from workers.stage.prompt_scores import PromptScores


@dataclass
class _Slot:
    sampling: Sampling
    prompt_tokens: int
    matcher: GrammarMatcher | None
    scores: PromptScores | None = None  # if the request asked for them
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    def write(self, position: int, tokens: tuple[int, ...]) -> None:
        """Overwrites everything from `position` on. A frame lies in the prompt or in the output, never in both."""
        part, start = self.prompt, position
        if position >= self.prompt_tokens:
            part, start = self.output, position - self.prompt_tokens
            if self.matcher is not None:
                self.matcher.write(start, tokens)
        del part[start:]
        part.extend(tokens)


class Tail:
    """Head, sampler and token history of every sequence slot."""

    def __init__(self, layers: Layers, sampler: Sampler, grammars: Grammars | None = None) -> None:
        """`layers` has the LM head. Without `grammars`, requests that have one fail."""
        self._layers = layers
        self._grammars = grammars
        self._sampler = sampler
        self._slots: dict[int, _Slot] = {}

    def open(self, message: Open) -> None:
        """A new request takes a slot over."""
        sampling = message.sampling
        matcher = None
        if sampling.grammar is not None and self._grammars is not None:
            matcher = GrammarMatcher(self._grammars, sampling.grammar)
        before = self._slots.get(message.holder)
        prompt = [] if before is None else before.prompt[: message.reused]
        wanted = sampling.prompt_logprobs
        scores = None if wanted is None else PromptScores(self._layers, wanted)
        self._slots[message.sequence] = _Slot(sampling, message.prompt_tokens, matcher, scores, prompt)

    def finish(self, frame: Frame, hidden: Tensor) -> Sample:
        """Samples after a live frame whose hidden states are `hidden` `[T, H]`.

        That is after each of its tokens, the prompt's but the last one excepted, until a draft in the frame is not what
        was sampled in its place. Each row goes through head and sampler alone, as in plain decoding.
        """
        slot = self._slots[frame.sequence]
        first = max(frame.position + 1, slot.prompt_tokens) if frame.wants_sample else frame.end
        slot.write(frame.position, frame.tokens[: first - frame.position])
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        probabilities: list[float] = []
        error: str | None = None
        drafts = [*frame.tokens[first - frame.position :], None] if frame.wants_sample else []
        for position, draft in enumerate(drafts, first):
            row = position - frame.position - 1
            logits = self._layers.logits(hidden[row : row + 1])
            try:
                sampled = self._sampler.sample(
                    logits, slot.sampling, position, slot.prompt, slot.output, self._allowed(slot)
                )
            except GrammarFailed as failure:
                error = str(failure)
                break
            tokens.append(sampled.token)
            if sampled.logprobs is not None:
                logprobs.append(sampled.logprobs)
            if sampled.probability is not None:
                probabilities.append(sampled.probability)
            if draft is None or tokens[-1] != draft:
                break
            slot.write(position, (draft,))
        in_prompt = frame.position < slot.prompt_tokens
        return Sample(
            frame.sequence,
            frame.epoch,
            first,
            tuple(tokens),
            tuple(logprobs),
            error,
            tuple(probabilities),
            slot.scores.add(frame, hidden) if slot.scores is not None and in_prompt else (),
        )

    @staticmethod
    def _allowed(slot: _Slot) -> bytes | None:
        """The tokens that the grammar permits next; None for all of them. Raises `GrammarFailed`."""
        if slot.matcher is not None:
            return slot.matcher.allowed()
        if slot.sampling.grammar is not None:
            raise GrammarFailed("this engine has no grammars: the model folder holds no tokenizer.json")
        return None

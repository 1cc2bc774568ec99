"""What one sequence shows its client: text, tokens and finish reason, from the engine's verified tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.output.detokenizer import Detokenizer
from server.output.parts import CallPiece, Part, PlainReader, Reader, Reasoning, merge, text_of
from server.output.stop_strings import StopMatcher
from workers.shared.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token of the output; it counts in the usage whether its text is shown or not."""

    token: int
    offset: int  # characters of output text decoded before it
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Delta:
    """What one message of the engine adds to the output of choice `index`."""

    index: int
    parts: list[Part]
    tokens: list[ShownToken]
    finish: str | None  # "stop", "length" or "tool_calls", with the last delta of the choice
    prompt: Sequence[ShownToken] = ()  # the prompt's tokens, where their logprobs were asked for; with the first delta

    @property
    def text(self) -> str:
        """The text among the parts."""
        return text_of(self.parts)


class Assembler:
    """Invariant: the concatenated deltas do not depend on how the tokens were divided into messages.

    A stop string ends the choice at the token that completes it, whatever else is in the same message; text after
    the stop string and the stop string itself are never shown. As in vLLM, stop strings are looked for only in text
    that begins after the first `min_tokens` tokens. The text of a stop token is never shown. What is shown goes
    through `reader`, which cuts it into parts and may end the choice too.
    """

    def __init__(
        self,
        index: int,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        reader: Reader | None = None,
        *,
        before: Sequence[int] = (),
    ) -> None:
        """`before` are tokens of the prompt which the text continues."""
        self._index = index
        self._detokenizer = Detokenizer(decode, before)
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        self._reader = reader if reader is not None else PlainReader()
        self._called = False
        self.count = 0  # tokens so far
        self.reasoning = 0  # tokens of them up to the last one whose text is reasoning
        self.finish: str | None = None

    @property
    def stopped_early(self) -> bool:
        """Whether a stop string or the reader has ended the choice, of which the engine knows nothing."""
        return self._matcher.matched is not None or self._reader.finished

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], finish: str | None) -> Delta:
        """Takes the tokens of one message, with as many logprobs as tokens or none; `finish` as in `Tokens`."""
        if self.finish is not None:
            return Delta(self._index, [], [], None)
        parts: list[Part] = []
        shown: list[ShownToken] = []
        for place, token in enumerate(tokens):
            self.count += 1
            shown.append(ShownToken(token, self._detokenizer.length, logprobs[place] if logprobs else None))
            hidden = finish == "stop" and place == len(tokens) - 1
            if not hidden:
                parts += self._read(self._show(self._detokenizer.push(token)))
            if self.stopped_early:
                break
        if not self.stopped_early and finish is not None:
            parts += self._read(self._matcher.push(self._detokenizer.flush()))
            parts += self._read(self._matcher.flush())
        if self.stopped_early or finish is not None:
            parts += self._noted(self._reader.flush())
        parts = merge(parts)
        self._called = self._called or any(isinstance(part, CallPiece) for part in parts)
        self.finish = self._finish_reason(finish)
        return Delta(self._index, parts, shown, self.finish)

    def _read(self, piece: str) -> list[Part]:
        return self._noted(self._reader.push(piece)) if piece else []

    def _noted(self, parts: list[Part]) -> list[Part]:
        if any(isinstance(part, Reasoning) for part in parts):
            self.reasoning = self.count
        return parts

    def _finish_reason(self, finish: str | None) -> str | None:
        reason = "stop" if self.stopped_early else finish
        return "tool_calls" if reason == "stop" and self._called else reason

    def _show(self, piece: str) -> str:
        return piece if self.count <= self._min_tokens else self._matcher.push(piece)


def shown_prompt(
    prompt: Sequence[int], logprobs: Sequence[TokenLogprobs], decode: Callable[[Sequence[int]], str]
) -> list[ShownToken]:
    """The tokens of a prompt with the logprobs that all but the first of them have."""
    detokenizer = Detokenizer(decode)
    shown = []
    for token, known in zip(prompt, (None, *logprobs), strict=True):
        shown.append(ShownToken(token, detokenizer.length, known))
        detokenizer.push(token)
    return shown

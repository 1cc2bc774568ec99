"""Log-probabilities of a prompt's own tokens, from the frames in which the prompt comes."""

import torch
from torch import Tensor

from workers.sampling.sampler import token_logprobs
from workers.shared.frames import Frame
from workers.shared.messages import TokenLogprobs
from workers.stage.parts import Layers

_ROWS = 32  # rows of logits at a time: memory is bounded, however long a frame is


class PromptScores:
    """Of one request. Invariant: what has been said so far is of every token heard of but the prompt's first.

    The token after a frame's last row is the next frame's first one, so that row waits for it.
    """

    def __init__(self, layers: Layers, count: int) -> None:
        """`layers` has the LM head; with each token go its `count` most likely rivals."""
        self._layers = layers
        self._count = count
        self._waiting: Tensor | None = None  # [1, H]

    def add(self, frame: Frame, hidden: Tensor) -> tuple[TokenLogprobs, ...]:
        """Takes the prompt's next frame with its hidden states `[T, H]`; scores its tokens, but the prompt's first."""
        before, tokens = [self._waiting] if self._waiting is not None else [], frame.tokens
        if self._waiting is None:
            tokens = tokens[1:]
        rows = torch.cat([*before, hidden[:-1]])
        self._waiting = hidden[-1:].clone()  # whose memory may be used again
        scores: list[TokenLogprobs] = []
        for start in range(0, len(tokens), _ROWS):
            logits = self._layers.row_logits(rows[start : start + _ROWS])
            scores += map(token_logprobs, logits, tokens[start : start + _ROWS], [self._count] * len(logits))
        return tuple(scores)

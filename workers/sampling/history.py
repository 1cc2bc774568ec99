"""The tokens before a position, with what penalties need of them kept up to date: nothing is counted anew a token."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from workers.shared.messages import Sampling

_FIRST_ROOM = 64  # distinct tokens


class TokenCounts:
    """How often each token occurs: a multiset whose content can be read as tensors at any time."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # by token
        self._ids = array("q", bytes(8 * _FIRST_ROOM))
        self._counts = array("q", bytes(8 * _FIRST_ROOM))

    def __len__(self) -> int:
        """Distinct tokens."""
        return len(self._places)

    def add(self, token: int) -> None:
        """One more."""
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):  # new memory, as tensors may be over the old one
                self._ids = self._ids + self._ids
                self._counts = self._counts + self._counts
            self._ids[place], self._counts[place] = token, 0
        self._counts[place] += 1

    def remove(self, token: int) -> None:
        """One less of a token that is there."""
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] == 0:
            del self._places[token]
            last = len(self._places)
            if place < last:
                moved = self._ids[last]
                self._ids[place], self._counts[place] = moved, self._counts[last]
                self._places[moved] = place

    @property
    def ids(self) -> Tensor:
        """The distinct tokens in no particular order, int64 `[n]`, n > 0; valid until the next change."""
        return torch.frombuffer(self._ids, dtype=torch.int64, count=len(self._places))

    @property
    def counts(self) -> Tensor:
        """How often each of `ids` occurs, int64 `[n]`; valid until the next change."""
        return torch.frombuffer(self._counts, dtype=torch.int64, count=len(self._places))


class History:
    """Prompt and output, drafts included, of one request. Rollback is a position: writing forgets what was behind.

    `seen` (prompt and output) and `output` are counted only where `sampling` has penalties that ask for them.
    """

    def __init__(self, prompt_tokens: int, sampling: Sampling, tokens: Sequence[int] = ()) -> None:
        """The first `prompt_tokens` tokens are the prompt's; `tokens` are there already."""
        self.prompt_tokens = prompt_tokens
        self.tokens: list[int] = []
        self.seen = TokenCounts() if sampling.repetition_penalty != 1 else None
        penalised = sampling.presence_penalty or sampling.frequency_penalty
        self.output = TokenCounts() if penalised else None
        self._final = 0
        self.write(0, tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def outputs(self) -> int:
        """Tokens behind the prompt."""
        return max(0, len(self.tokens) - self.prompt_tokens)

    def write(self, position: int, tokens: Sequence[int]) -> None:
        """Overwrites everything from `position` on, which is at most the length."""
        for place in range(len(self.tokens) - 1, position - 1, -1):
            token = self.tokens.pop()
            if self.seen is not None:
                self.seen.remove(token)
            if self.output is not None and place >= self.prompt_tokens:
                self.output.remove(token)
        if self.seen is not None:
            for token in tokens:
                self.seen.add(token)
        if self.output is not None:
            for token in tokens[max(0, self.prompt_tokens - position) :]:
                self.output.add(token)
        self.tokens.extend(tokens)

    def follow(self, tokens: Sequence[int], final: int) -> None:
        """Becomes `tokens`, of which the first `final` will not change any more; costs as many as may have changed."""
        start = min(self._final, len(self.tokens))
        self.write(start, tokens[start:])
        self._final = final

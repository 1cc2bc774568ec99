"""What a model knows of the next smaller one, and what it tells it. One slot; pure."""

from collections.abc import Sequence

from speculation.cascade.messages import OpenText, WriteText
from speculation.decisions.cascade.texts import Agreement, Follower, ModelText
from workers.shared.messages import Sampling


class Smaller:
    """The bigger model's side. Nothing is waited for: what is there is used, and what was written is told."""

    def __init__(self, slot: int) -> None:
        self.hushed = False  # whether it is to hear of nothing for now
        self._slot = slot
        self._number = 0
        self._text = ModelText()
        self._prompt = 0
        self._sampling = Sampling(seed=0)
        self._opened = False  # whether it has been told of the request
        self._copy = ModelText()  # of what it has written
        self._begin()

    def open(self, text: ModelText, prompt: int, sampling: Sampling) -> None:
        """A request begins, whose `text` so far starts with `prompt` tokens of prompt."""
        self._text = text
        self._prompt = prompt
        self._sampling = sampling
        self.hushed = False
        self._begin()

    def lost(self) -> None:
        """Its process has gone: whoever takes its place will be told everything."""
        self._begin()

    def heard(self, message: WriteText) -> None:
        """It has written something. Raises `OutOfStep` for what cannot follow from what it was told."""
        if self._opened and message.number == self._number:
            self._copy.write(message.position, message.tokens)

    def drafts(self) -> Sequence[int]:
        """What it has written beyond the text, as far as is known; none where it is late or on another path."""
        reach = self._agreement.reach()
        return self._copy.tokens[reach:] if reach == len(self._text) else ()

    def news(self) -> OpenText | WriteText | None:
        """What it has not been told; it counts as told from here on."""
        tokens, told = self._text.tokens, self._told.at
        if self.hushed or told == len(tokens):
            return None
        self._told.at = len(tokens)
        if self._opened:
            return WriteText(self._slot, self._number, told, tokens[told:])
        self._copy.write(0, tokens)
        self._opened = True
        return OpenText(self._slot, self._number, self._prompt, list(tokens), self._sampling)

    def _begin(self) -> None:
        self._number += 1
        self._opened = False
        self._copy = ModelText()
        self._told: Follower = self._text.follower()
        self._agreement = Agreement(self._text, self._copy)

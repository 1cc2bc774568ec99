"""A cascade of made-up models whose messages take any time, and whose processes are slow, stop and are killed.

Each model is a function from a text to its next token. Whatever happens, a draft is what its model writes behind
exactly the text that the bigger model has, and every token is sampled over keys and values of exactly the text before.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from speculation.cascade.messages import OpenText, WriteText
from speculation.decisions.cascade.smaller import Smaller
from speculation.decisions.cascade.texts import ModelText
from speculation.decisions.cascade.writer import CascadeWriter, Pacing, Pass
from workers.shared.cascade.figures import ModelFigures
from workers.shared.messages import Sampling

VOCABULARY = 50
NextToken = Callable[[Sequence[int]], int]


def model(seed: int, agreement: float) -> NextToken:
    """Says what every other says in the share `agreement` of all texts, and something of its own in the others."""

    def following(text: Sequence[int]) -> int:
        key = hash(tuple(text[-6:])) ^ len(text)
        common = Random(key).randrange(VOCABULARY)
        own = Random(key ^ (seed + 1) * 0x9E3779B97F4A7C15)
        return common if own.random() < agreement else own.randrange(VOCABULARY)

    return following


class Channel:
    """Keeps order, and takes its time; whoever connects anew finds it empty."""

    def __init__(self) -> None:
        self.messages: deque[OpenText | WriteText] = deque()


class SimulatedModel:
    """A process with one slot or several, and the channels to the next bigger model."""

    def __init__(
        self, following: NextToken, slots: int, capacity: int, pacing: Pacing, smaller: "SimulatedModel | None"
    ) -> None:
        self.following = following
        self.smaller = smaller
        self.down, self.up = Channel(), Channel()
        self.connected = False
        self._new = lambda: [
            CascadeWriter(slot, capacity, pacing, ModelFigures("made up"), smallest=smaller is None)
            for slot in range(slots)
        ]
        self.writers = self._new()
        self._lead = pacing.lead
        self._kv: list[list[tuple[int, ...]]] = [[] for _ in range(slots)]  # the text under each position
        self.computed = 0

    def killed(self) -> None:
        """Everything is forgotten; the neighbours notice."""
        self.writers = self._new()
        self._kv = [[] for _ in self._kv]
        self.connected = False
        self.down.messages.clear()
        self.up.messages.clear()
        if self.smaller is not None:
            self.smaller.parted()

    def parted(self) -> None:
        """The bigger model has gone."""
        self.connected = False
        self.down.messages.clear()
        self.up.messages.clear()
        for writer in self.writers:
            writer.close()

    def ends(self) -> list[Smaller]:
        """What this one knows of the next smaller one."""
        return [writer.smaller for writer in self.writers if writer.smaller is not None]

    def step(self, slot: int) -> bool:
        """One pass, if there is anything to compute."""
        writer = self.writers[slot]
        work = writer.work()
        if work is None:
            work = None if self.smaller is not None and self.smaller.connected else writer.work(patient=False)
        if work is None:
            return False
        self.computed += 1
        writer.computed(work, self._sample(slot, work))
        assert len(writer.text) - len(writer._bigger) <= self._lead
        return True

    def hear(self) -> bool:
        """Takes in one message of the bigger model."""
        if not self.down.messages:
            return False
        message = self.down.messages.popleft()
        writer = self.writers[message.slot]
        if isinstance(message, OpenText):
            held = 0
            for mine, theirs in zip(writer.held, message.tokens, strict=False):
                if mine != theirs:
                    break
                held += 1
            writer.open(message, held)
        else:
            writer.heard(message)
        return True

    def tell(self) -> None:
        """Sends what is new to both neighbours; connects to the smaller one where it is not."""
        if self.connected:
            self.up.messages.extend(news for writer in self.writers if (news := writer.news()) is not None)
        if self.smaller is not None:
            tell(self.ends(), self.smaller)

    def _sample(self, slot: int, work: Pass) -> list[int]:
        text = self.writers[slot].text.tokens
        rows = [*text[: work.position], *work.tokens]
        kv = self._kv[slot]
        del kv[work.position :]
        assert len(kv) == work.position, "keys and values are missing"
        assert all(seen == tuple(text[: place + 1]) for place, seen in enumerate(kv)), "they are of another text"
        kv += [tuple(rows[: place + 1]) for place in range(work.position, len(rows))]
        assert not work.samples or (work.position < len(text) and rows[: len(text)] == text), "no row to sample behind"
        written: list[int] = []
        if work.samples:
            for place in range(len(work.drafts) + 1):
                written.append(self.following([*text, *written]))
                if place == len(work.drafts) or written[-1] != work.drafts[place]:
                    break
        return written


def tell(ends: Sequence[Smaller], smaller: SimulatedModel) -> None:
    """Sends what is new to the smaller model, and connects where it is not."""
    smaller.connected = True
    smaller.down.messages.extend(news for end in ends if (news := end.news()) is not None)


class Target:
    """Rank 0 and its pipeline: verifies what has been drafted, or goes on without."""

    def __init__(self, following: NextToken, slots: int, smaller: SimulatedModel) -> None:
        self.following = following
        self.smaller = smaller
        self.ends = [Smaller(slot) for slot in range(slots)]
        self.texts = [ModelText() for _ in range(slots)]
        self.prompts: list[Sequence[int]] = [()] * slots
        self.accepted = 0

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        """A request, in place of the one before, which may be done or aborted."""
        self.prompts[slot] = prompt
        self.texts[slot] = ModelText(prompt)
        self.ends[slot].open(self.texts[slot], len(prompt), Sampling(seed=0))

    def lost(self) -> None:
        """The process of the next smaller model has gone."""
        for end in self.ends:
            end.lost()

    def verify(self, slot: int, most: int) -> None:
        """A frame with what drafts there are, up to `most`."""
        text = self.texts[slot]
        drafts = list(self.ends[slot].drafts()[:most])
        for place, draft in enumerate(drafts):
            assert draft == self.smaller.following([*text.tokens, *drafts[:place]]), "a draft of another text"
        for place in range(len(drafts) + 1):
            token = self.following(text.tokens)
            text.write(len(text), [token])
            if place == len(drafts) or token != drafts[place]:
                break
            self.accepted += 1

    def hear(self) -> bool:
        """Takes in one message of the smaller model."""
        if not self.smaller.up.messages:
            return False
        message = self.smaller.up.messages.popleft()
        assert isinstance(message, WriteText)
        self.ends[message.slot].heard(message)
        return True


def hear_from_smaller(models: SimulatedModel) -> bool:
    """A middle model takes in one message of the next smaller one."""
    if models.smaller is None or not models.smaller.up.messages:
        return False
    message = models.smaller.up.messages.popleft()
    assert isinstance(message, WriteText)
    models.ends()[message.slot].heard(message)
    return True

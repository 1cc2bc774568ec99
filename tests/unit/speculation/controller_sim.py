"""A machine and a text that are made up, to hold the controller against every fixed choice."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice, Times

NONE = Choice("none")
NGRAM = Choice("ngram", prior=0.25)
BOTH = Choice("pdm+ngram", prior=0.7, family="module", listens=True)
MODULE = Choice("pdm", prior=0.7, family="module", listens=True)
ALL = (NONE, NGRAM, BOTH, MODULE)


@dataclass
class Outcome:
    """Seconds that answers took, and would have taken with each choice all along."""

    seconds: float
    fixed: dict[str, float]
    controller: Controller

    @property
    def ratio(self) -> float:
        """Against the best fixed choice."""
        return self.seconds / min(self.fixed.values())


def play(
    choices: Sequence[Choice],
    machine: Callable[[str], Times],
    right: Callable[[str, int], float],
    answers: Sequence[int],
    *,
    stages: int = 2,
    believed: Callable[[str], Times] | None = None,
    calibrated: bool = True,
    seed: int = 0,
) -> Outcome:
    """Answers of so many tokens, one after the other.

    `machine` says how long samples of a choice take, `right` how often it is right at the n-th token. The calibration
    found what is `believed`, and each sample takes 10 % more or less.
    """
    rng = random.Random(seed)
    times = {choice.name: (believed or machine)(choice.name) for choice in choices} if calibrated else None
    controller = Controller(stages, choices, times)
    fixed = {choice.name: 0.0 for choice in choices}
    seconds = now = 0.0
    for tokens in answers:
        session = controller.begin(tokens)
        session.sampled(now, 0, 1)
        for token in range(1, tokens):
            for choice in choices:
                times, share = machine(choice.name), right(choice.name, token)
                fixed[choice.name] += share * times.full + (1 - share) * times.refill
            name = session.choice.name
            assert session.listening or not session.choice.listens
            full = rng.random() < right(name, token)
            took = machine(name).full if full else machine(name).refill
            seconds += took
            now += took * rng.uniform(0.9, 1.1)
            if NGRAM in choices and name != "ngram":
                session.foreseen(NGRAM, right=rng.random() < right("ngram", token))
            session.answered()
            session.sampled(now, 1 if full else stages, 1)
        session.end()
    return Outcome(seconds, fixed, controller)

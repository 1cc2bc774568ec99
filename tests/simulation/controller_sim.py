"""A machine and a text that are made up, to hold calibration and controller against every fixed choice."""

import bisect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from speculation.calibration import Calibration, Rehearsal
from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice, Judgement, Measured, Times
from speculation.drafters.base import Draft
from speculation.drafters.build import choices as offered
from workers.shared.config import DrafterConfig

ALL = tuple(offered(DrafterConfig("pdm+ngram")))  # what an engine chooses from
NONE, NGRAM, BOTH, MODULE = ALL
CHUNK = 128


@dataclass
class Machine:
    """How long everything takes, in seconds."""

    times: Callable[[str], Times]  # of a sample, by the choice's name
    drafts: Callable[[str], float] = lambda name: 0.03 if name.startswith("pdm") else 0.0
    slower: Callable[[float], float] = lambda now: 1.0  # times that all takes, at a moment
    stages: int = 2
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    now: float = 0.0

    def take(self, name: str, verdict: Judgement) -> None:
        """A sample passes; 10 % more or less, and one in fifty is disturbed."""
        seconds: float = getattr(self.times(name), verdict.value) * self.slower(self.now)
        noise = self.rng.uniform(0.9, 1.1) * (3.0 if self.rng.random() < 0.02 else 1.0)
        self.now += seconds * noise


def calibrate(machine: Machine, choices: Sequence[Choice]) -> Measured:
    """What a calibration finds."""
    calibration = Calibration(choices, machine.stages, 1000)
    for run in calibration.runs(CHUNK):
        run.begins(machine.now)
        text = _answer(machine, run)
        run.ended(text, len(text) * machine.drafts(run.choice.name))
    return calibration.measured()


def _answer(machine: Machine, run: Rehearsal) -> list[int]:
    text = list(run.request.prompt)
    before, rejected = Judgement.SILENT, False
    for number in range(run.request.max_tokens):
        machine.take(run.choice.name, before)
        token = (7 * len(text)) % 1000
        draft = run.overrule(len(text), Draft((0,))) if number else None
        verdict = Judgement.SILENT
        if isinstance(draft, Draft):
            verdict = Judgement.RIGHT if draft.token == token else Judgement.WRONG
        text.append(token)
        cycles = 0 if not number else 1 if before is Judgement.RIGHT else machine.stages
        before, rejected = verdict, verdict is Judgement.WRONG
        run.sampled(machine.now, cycles, 1, rejected=rejected)
    return text


Shares = Callable[[str, int], tuple[float, float]]  # right and silent, by name, at the n-th token


@dataclass
class Outcome:
    """Seconds that answers took, and would have taken with each choice all along."""

    seconds: float
    fixed: dict[str, float]
    controller: Controller

    @property
    def ratio(self) -> float:
        """The best fixed choice against the controller: tokens a second as a share of the best."""
        return min(self.fixed.values()) / self.seconds


def play(
    choices: Sequence[Choice],
    machine: Machine,
    shares: Shares,
    answers: Sequence[int],
    *,
    measured: Measured | None = None,
    calibrated: bool = True,
) -> Outcome:
    """Answers of so many tokens, one after the other; where nothing is given as `measured`, it is."""
    if calibrated and measured is None:
        measured = calibrate(machine, choices)
    controller = Controller(machine.stages, choices, measured)
    fixed = {choice.name: 0.0 for choice in choices}
    seconds = 0.0
    rng = random.Random(machine.rng.random())
    for tokens in answers:
        session = controller.begin(tokens)
        machine.now += 1.0  # it is quiet between answers
        session.sampled(machine.now, 0, 1, rejected=False)
        before, name = Judgement.SILENT, session.choice.name
        for token in range(1, tokens):
            expected = {choice.name: _expected(machine, choice.name, shares(choice.name, token)) for choice in choices}
            fixed = {known: spent + expected[known] for known, spent in fixed.items()}
            assert session.listening or not session.choice.listens
            seconds += expected[name]
            machine.take(name, before)
            name = session.choice.name
            luck = rng.random()
            verdict = _verdict(luck, shares(name, token))
            if NGRAM in choices and name != "ngram":
                session.foreseen(NGRAM, _verdict(luck, shares("ngram", token)))
            session.answered()
            cycles = 1 if before is Judgement.RIGHT else machine.stages
            session.sampled(machine.now, cycles, 1, rejected=verdict is Judgement.WRONG)
            before = verdict
        session.end()
    return Outcome(seconds, fixed, controller)


def _expected(machine: Machine, name: str, shares: tuple[float, float]) -> float:
    """Seconds a token takes on the average: what luck does is no merit."""
    (right, silent), times = shares, machine.times(name)
    return machine.slower(machine.now) * (
        right * times.right + silent * times.silent + (1.0 - right - silent) * times.wrong
    )


def _verdict(luck: float, shares: tuple[float, float]) -> Judgement:
    right, silent = shares
    return Judgement.RIGHT if luck < right else Judgement.SILENT if luck < right + silent else Judgement.WRONG


PLAIN = Times(right=0.031, wrong=0.056, silent=0.052)


def machine(module: Times, both: Times | None = None, **settings: Any) -> Machine:
    """Lookups take no time; the module may have a device of its own, or not."""
    times = {"none": PLAIN, "ngram": PLAIN, "pdm+ngram": both or module, "pdm": module}
    return Machine(times.__getitem__, **settings)


OWN_DEVICE = Times(right=0.033, wrong=0.057, silent=0.053)
SHARED_CORES = Times(right=0.060, wrong=0.090, silent=0.060)
TEXTS = {  # shares of right and silent drafts of lookup, of right ones of both together and of the module
    "repetitive": ((0.56, 0.23), 0.86, 0.80),
    "code": ((0.29, 0.40), 0.78, 0.72),
    "prose": ((0.10, 0.50), 0.60, 0.60),
    "strange": ((0.02, 0.20), 0.10, 0.10),
}


def text(name: str, *, until: int = 0, before: str = "") -> Shares:
    """Of one character; up to token `until`, if that is given, of another."""

    def shares(choice: str, token: int) -> tuple[float, float]:
        lookup, both, module = TEXTS[before if token < until else name]
        return {"none": (0.0, 1.0), "ngram": lookup, "pdm+ngram": (both, 0.0), "pdm": (module, 0.0)}[choice]

    return shares


def bursts(rng: random.Random, times: float, quiet: float, busy: float) -> Callable[[float], float]:
    """Another process: all takes `times` as long for about `busy` seconds, then it rests for about `quiet` seconds."""
    ends = [0.0]  # of rests and bursts, in turn

    def slower(now: float) -> float:
        while ends[-1] <= now:
            ends.append(ends[-1] + rng.expovariate(1.0 / (busy if len(ends) % 2 == 0 else quiet)))
        return times if bisect.bisect(ends, now) % 2 == 0 else 1.0

    return slower

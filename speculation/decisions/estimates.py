"""What is known of the ways to draft: how long a sample takes with each, and how often each is right. No clock."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

_FLOOR = 2.0  # samples that old knowledge is still worth, and a prior from the start
_PACE_HORIZON = 64.0  # samples after which a time is old
_CALIBRATION_WEIGHT = 8.0  # samples that a calibration is worth which nothing has disturbed
_SURE = 8.0  # samples after which half of a change of one time is put down to the machine; more of them, more
_OUTLIER = 1.6  # a sample may take so many times what was expected, or so little; the rest is somebody else's doing
_LEAST_VARIANCE = 0.02  # of verdicts: a few that agree do not make a certainty
_PRIOR_WEIGHT = 6.0  # samples that what is usual of a choice is worth
_SIBLING_WEIGHT = 0.5  # of a verdict on one choice of a family, for the others


class Judgement(Enum):
    """What became of the draft for a token. It decides what the pipeline holds when the next sample is waited for."""

    RIGHT = "right"  # the frame of the token was on its way: the next sample follows at once
    WRONG = "wrong"  # the pipeline starts anew, and stages may still be at work on the draft
    SILENT = "silent"  # there was none: the pipeline starts anew, and was empty


class JudgementReader:
    """Finds the verdict that a sample's time depends on."""

    def __init__(self, stages: int, width: int) -> None:
        """`width` is that of the frame policy: most tokens of a decode frame."""
        self._stages = stages
        self._width = width
        self._rejected = False

    def read(self, cycles: int, tokens: int, *, rejected: bool) -> Judgement:
        """Of a sample that verified `tokens` and cost `cycles` cycles; `rejected`: one of its drafts was wrong.

        It is on the draft for the token before, where a frame holds one token. Where it holds several, wrong drafts
        cost in their own frame.
        """
        drafted = self._rejected if self._width == 1 else rejected or tokens > 1
        self._rejected = rejected
        if cycles < self._stages:
            return Judgement.RIGHT
        return Judgement.WRONG if drafted else Judgement.SILENT


@dataclass(frozen=True, eq=False)
class Choice:
    """One way to draft, or not to."""

    name: str
    prior: float = 0.0  # share of tokens for which its draft is right, before anything is known
    silence: float = 0.0  # share for which it has none
    family: str = ""  # choices of one family are right about the same tokens
    listens: bool = False  # reads the hidden states of a request, from its first token on
    apart: bool = False  # computes in processes of its own: what that costs the stages is not in the time of a draft


class Times(msgspec.Struct, frozen=True):
    """Seconds that a sample takes, by the verdict on the draft for the token before."""

    right: float
    wrong: float
    silent: float


class Measured(msgspec.Struct, frozen=True):
    """What a calibration has found of a machine."""

    times: dict[str, Times]  # by the choice's name
    drafts: dict[str, float] = {}  # seconds of a draft beside busy stages, by the choice's name
    rows: dict[int, float] = {}  # seconds of a frame of so many rows through all stages, one of which is sampled
    free: Collection[str] = ()  # choices whose drafts take no time to speak of: they cost what plain decoding does
    spread: float = 1.0  # times that the usual sample took of the least disturbed one's time


@dataclass
class Average:
    """A mean that is worth `weight` samples. The older it is the less it weighs, so that new ones move it more."""

    value: float
    weight: float = _FLOOR

    def add(self, value: float, weight: float = 1.0) -> float:
        """Takes one more; returns the share of the mean that it makes up."""
        self.weight += weight
        share = weight / self.weight
        self.value += share * (value - self.value)
        return share

    def age(self, horizon: float) -> None:
        """A sample has passed, of this kind or another: what is `horizon` old weighs 1/e of what is new."""
        if self.weight > _FLOOR:
            self.weight = max(_FLOOR, self.weight * (1.0 - 1.0 / horizon))


class Hits:
    """How often each choice is right, wrong and silent, of all samples for which it could have had a draft."""

    def __init__(self, choices: Sequence[Choice], horizon: float) -> None:
        self._choices = choices
        self._horizon = horizon
        self._right = {choice.name: Average(choice.prior, _PRIOR_WEIGHT) for choice in choices}
        self._silent = {choice.name: Average(choice.silence, _PRIOR_WEIGHT) for choice in choices}

    def shares(self, choice: Choice) -> Mapping[Judgement, float]:
        """The shares of all verdicts; they add up to 1."""
        right, silent = self._right[choice.name].value, self._silent[choice.name].value
        return {Judgement.RIGHT: right, Judgement.WRONG: max(0.0, 1.0 - right - silent), Judgement.SILENT: silent}

    def doubt(self, choice: Choice) -> float:
        """Standard error of the share that is right."""
        known = self._right[choice.name]
        return math.sqrt(max(known.value * (1.0 - known.value), _LEAST_VARIANCE) / known.weight)

    def copy(self, horizon: float, most: float) -> "Hits":
        """The same, worth at most `most` samples and forgotten after `horizon`: what a new text begins with."""

        def capped(known: Mapping[str, Average]) -> dict[str, Average]:
            return {name: Average(one.value, min(one.weight, most)) for name, one in known.items()}

        copied = Hits(self._choices, horizon)
        copied._right, copied._silent = capped(self._right), capped(self._silent)
        return copied

    def add(self, choice: Choice, verdict: Judgement) -> None:
        """The verdict on one draft of `choice`."""
        for other in self._choices:
            if other is choice or (choice.family and other.family == choice.family):
                weight = 1.0 if other is choice else _SIBLING_WEIGHT
                self._right[other.name].add(verdict is Judgement.RIGHT, weight)
                self._silent[other.name].add(verdict is Judgement.SILENT, weight)

    def age(self) -> None:
        """A sample has passed."""
        for known in (*self._right.values(), *self._silent.values()):
            known.age(self._horizon)


class Paces:
    """Seconds a token of each choice, whatever the text."""

    def __init__(self, choices: Sequence[Choice], stages: int, measured: Measured | None, width: int) -> None:
        """Where nothing was measured a choice is taken to cost what plain decoding does, and 1/`stages` where right.

        Such figures mean something beside each other only, until a first sample gives the scale. What was measured
        while the machine was busy with something else weighs less. Choices whose drafts are free share the times of
        plain decoding, so nothing that is measured can make one look faster than the other but its verdicts. Frames of
        up to `width` tokens hold as many as the prior says at first.
        """
        known = measured or Measured({})
        self.scaled = bool(known.times)
        self._plain = next((choice.name for choice in choices if not choice.prior), choices[0].name)
        self._of = {choice.name: self._plain if choice.name in known.free else choice.name for choice in choices}
        self._times = {}
        for name in dict.fromkeys(self._of.values()):
            times, weight = known.times.get(name), max(_FLOOR, _CALIBRATION_WEIGHT / known.spread**8)
            if times is None:
                times, weight = Times(1.0 / stages, 1.0, 1.0), _FLOOR
            self._times[name] = {verdict: Average(getattr(times, verdict.value), weight) for verdict in Judgement}
        self._tokens = {
            choice.name: Average(sum(choice.prior**drafts for drafts in range(width))) for choice in choices
        }

    def seconds(self, choice: Choice, shares: Mapping[Judgement, float]) -> float:
        """Seconds a token, with `shares` of the verdicts."""
        times = self._times[self._of[choice.name]]
        return sum(share * times[verdict].value for verdict, share in shares.items()) / self._tokens[choice.name].value

    def shared(self, one: Choice, other: Choice) -> bool:
        """Whether both take the same times."""
        return self._of[one.name] == self._of[other.name]

    def at_best(self, choice: Choice) -> float:
        """Seconds a token if every draft of `choice` were right; of one that never drafts, what it always takes."""
        return self.seconds(choice, {Judgement.RIGHT if choice.prior else Judgement.SILENT: 1.0})

    def level(self, choice: Choice) -> float:
        """Seconds of a sample, whatever the text: the mean over all verdicts."""
        return sum(known.value for known in self._times[self._of[choice.name]].values()) / len(Judgement)

    def stake(self, choice: Choice) -> float:
        """Seconds that a draft which is right saves against one which is wrong."""
        times = self._times[self._of[choice.name]]
        return max(0.0, times[Judgement.WRONG].value - times[Judgement.RIGHT].value) / self._tokens[choice.name].value

    def add(self, choice: Choice, seconds: float, tokens: int, verdict: Judgement) -> None:
        """A sample took `seconds` and held `tokens`; `verdict` is that on the token before.

        A part of the change is believed of every other time, too: a longer context or a busier machine slows all. The
        better a time was known, the less likely it is that only that has changed.
        """
        name = self._of[choice.name]
        known = self._times[name][verdict]
        expected = known.value
        if not self.scaled:
            self.scaled = True
            self._scale(seconds / known.value)
            expected = known.value
        ratio = min(max(seconds / expected, 1.0 / _OUTLIER), _OUTLIER)
        part = known.weight / (known.weight + _SURE)
        share = known.add(ratio * expected)
        self._tokens[choice.name].add(tokens)
        change = share * (ratio - 1.0)
        for times in self._times.values():
            for figure in times.values():
                if figure is not known:
                    figure.value *= 1.0 + part * change
                figure.age(_PACE_HORIZON)
        for held in self._tokens.values():
            held.age(_PACE_HORIZON)

    def doubt(self) -> None:
        """What is known of every time is worth little from here on: new samples say how they stand to each other."""
        for times in self._times.values():
            for figure in times.values():
                figure.weight = _FLOOR

    def _scale(self, factor: float) -> None:
        for times in self._times.values():
            for figure in times.values():
                figure.value *= factor

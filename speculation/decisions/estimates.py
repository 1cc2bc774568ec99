"""What is known of the ways to draft: how long a sample takes with each, and how often each is right. No clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

_FLOOR = 2.0  # samples that old knowledge is still worth, and a prior from the start
_PACE_HORIZON = 128.0  # samples after which a time is old
_CALIBRATION_WEIGHT = 8.0  # samples that the calibration is worth
_DRIFT_SHARED = 0.5  # how much of a change of pace is put down to the machine, not to the choice and its family
_OUTLIER = 4.0  # a sample may take so many times what was expected; the rest is somebody else's doing
_SIBLING_WEIGHT = 0.5  # of a verdict on one choice of a family, for the others


@dataclass(frozen=True, eq=False)
class Choice:
    """One way to draft, or not to."""

    name: str
    prior: float = 0.0  # share of tokens for which its draft is right, before anything is known
    family: str = ""  # choices of one family are right about the same tokens
    listens: bool = False  # reads the hidden states of a request, from its first token on


class Times(msgspec.Struct, frozen=True):
    """Seconds that a sample takes where it follows another through the pipeline, and where it found it empty."""

    full: float
    refill: float


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
    """How often each choice is right, of all samples for which it could have had a draft."""

    def __init__(self, choices: Sequence[Choice], horizon: float) -> None:
        self._choices = choices
        self._horizon = horizon
        self._right = {choice.name: Average(choice.prior) for choice in choices}

    def __getitem__(self, choice: Choice) -> float:
        return self._right[choice.name].value

    def copy(self, horizon: float, most: float) -> "Hits":
        """The same, worth at most `most` samples and forgotten after `horizon`: what a new text begins with."""
        copied = Hits(self._choices, horizon)
        copied._right = {name: Average(known.value, min(known.weight, most)) for name, known in self._right.items()}
        return copied

    def add(self, choice: Choice, *, right: bool) -> None:
        """The verdict on one sample of `choice`."""
        self._right[choice.name].add(right)
        for other in self._choices:
            if choice.family and other.family == choice.family and other is not choice:
                self._right[other.name].add(right, _SIBLING_WEIGHT)

    def age(self) -> None:
        """A sample has passed."""
        for known in self._right.values():
            known.age(self._horizon)


@dataclass
class _Pace:
    full: Average
    refill: Average
    tokens: Average  # a sample


class Paces:
    """Seconds a token of each choice, whatever the text."""

    def __init__(self, choices: Sequence[Choice], stages: int, times: Mapping[str, Times], width: int) -> None:
        """Without `times` of a choice it is taken to cost what plain decoding does, and 1/`stages` where it is right.

        Such figures mean something beside each other only, until a first sample gives the scale. Frames of up to
        `width` tokens hold as many as the prior says at first.
        """
        self._choices = choices
        self._scaled = bool(times)
        self._paces = {}
        for choice in choices:
            known, weight = times.get(choice.name), _CALIBRATION_WEIGHT
            if known is None:
                known, weight = Times(1.0 / stages, 1.0), _FLOOR
            tokens = sum(choice.prior**drafts for drafts in range(width))
            self._paces[choice.name] = _Pace(
                Average(known.full, weight), Average(known.refill, weight), Average(tokens)
            )

    def seconds(self, choice: Choice, right: float) -> float:
        """Seconds a token, where a share `right` of the samples follow another."""
        pace = self._paces[choice.name]
        return (right * pace.full.value + (1.0 - right) * pace.refill.value) / pace.tokens.value

    def add(self, choice: Choice, seconds: float, tokens: int, *, full: bool) -> None:
        """A sample took `seconds` and held `tokens`; `full` says that it followed another.

        Half of a change is believed of every other figure, too: a longer context or a busier machine slows all.
        """
        pace = self._paces[choice.name]
        known = pace.full if full else pace.refill
        if not self._scaled:
            self._scaled = True
            self._scale(seconds / known.value)
        ratio = min(seconds / known.value, _OUTLIER)
        share = known.add(ratio * known.value)
        pace.tokens.add(tokens)
        change = share * (ratio - 1.0)
        for other in self._choices:
            relative = choice.family and other.family == choice.family
            pace = self._paces[other.name]
            for figure in (pace.full, pace.refill):
                if figure is not known:
                    figure.value *= 1.0 + (change if relative else _DRIFT_SHARED * change)
                figure.age(_PACE_HORIZON)
            pace.tokens.age(_PACE_HORIZON)

    def _scale(self, factor: float) -> None:
        for pace in self._paces.values():
            pace.full.value *= factor
            pace.refill.value *= factor

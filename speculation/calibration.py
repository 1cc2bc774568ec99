"""Calibration: what each choice costs on this machine, measured by requests that the engine makes itself.

A short text is decoded plainly, then again with each drafter at work, but with drafts that are all right, and with
drafts that are all wrong. These are ordinary requests through the real pipeline, so they also open its links and warm
its kernels, and whatever a drafter does to the stages is in the times. They are kept for the next start.
"""

import hashlib
import platform
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice, Times
from speculation.drafters.base import PENDING, Answer, Draft
from workers.prepare.prepared_folders import cache_folder
from workers.shared.config import EngineConfig
from workers.shared.messages import Generate, Sampling
from workers.shared.time_slices import available_cores

_PROMPT = 16  # tokens
_TOKENS = 10  # of a run with right drafts, whose samples come in quick succession
_SLOW_TOKENS = 6  # of one with wrong drafts
_STEADY = 1.5  # most that the slowest plain sample takes of the fastest's time
_SETTLING = 2  # samples until the pipeline is as full as it will be
_USUAL_TOKENS = 256  # of an answer
_FORMAT = 1  # of the file


class Rehearsal:
    """One run: stands in for a session, always with the same choice, and keeps the times of its samples."""

    def __init__(self, choice: Choice, stages: int, drafts: Sequence[int] = ()) -> None:
        """`drafts` are by position; past their end there are none."""
        self.choice = choice
        self.listening = True
        self.full: list[float] = []  # seconds
        self.refill: list[float] = []
        self._stages = stages
        self._drafts = drafts
        self._last: float | None = None

    def overrule(self, position: int, answer: Answer) -> Answer:
        """The drafter has done its work; what is drafted is what this run is to have."""
        if answer is PENDING or position >= len(self._drafts):
            return PENDING if answer is PENDING else None
        return Draft((self._drafts[position],))

    def answered(self) -> None:
        """Of no interest."""

    def foreseen(self, choice: Choice, *, right: bool) -> None:
        """Of no interest."""

    def deafen(self) -> None:
        """No hidden states are lost: the prompt is computed anew."""

    def end(self) -> None:
        """Of no interest."""

    def sampled(self, now: float, cycles: int, tokens: int, *, alone: bool = True) -> None:
        """Notes the time since the last sample."""
        if self._last is not None:
            (self.full if cycles < self._stages else self.refill).append(now - self._last)
        self._last = now


class Calibration:
    """The runs to make, one after the other, and what came of them."""

    def __init__(self, choices: Sequence[Choice], stages: int, vocab_size: int) -> None:
        """`choices` has one of the name "none"."""
        self.times: dict[str, Times] = {}
        self.steady = False  # whether the machine was quiet enough for the times to be of use at the next start
        self._choices = choices
        self._stages = stages
        self._vocab_size = vocab_size
        self.text: list[int] = []  # of the last run: prompt and output

    @staticmethod
    def fits(room: int) -> bool:
        """Whether the runs fit sequences of `room` tokens."""
        return room >= _PROMPT + _TOKENS

    def _request(self, tokens: int) -> Generate:
        prompt = [place % self._vocab_size for place in range(_PROMPT)]
        return Generate("calibration", prompt, tokens, Sampling(seed=0, temperature=0))

    def runs(self) -> Iterator[tuple[Generate, Rehearsal]]:
        """Request and session of each run; the caller sets `text` before the next."""
        plain = next(choice for choice in self._choices if choice.name == "none")
        silent = Rehearsal(plain, self._stages)
        yield self._request(_TOKENS), silent
        self.steady = max(_settled(silent.refill)) <= _STEADY * min(_settled(silent.refill))
        right = tuple(self.text)
        wrong = tuple((token + 1) % self._vocab_size for token in right)
        measured: dict[str, Times] = {}  # by family
        for choice in sorted(self._choices, key=lambda choice: choice is not plain):
            if choice.family in measured:
                self.times[choice.name] = measured[choice.family]
                continue
            fast, slow = Rehearsal(choice, self._stages, right), silent
            yield self._request(_TOKENS), fast
            if choice is not plain:
                slow = Rehearsal(choice, self._stages, wrong)
                yield self._request(_SLOW_TOKENS), slow
            refill = statistics.median(_settled(slow.refill))
            full = statistics.median(_settled(fast.full)) if fast.full else refill
            if choice is not plain:  # whatever was measured, work for drafts makes no stage faster
                least = self.times[plain.name]
                full, refill = max(full, least.full), max(refill, least.refill)
            self.times[choice.name] = Times(full, refill)
            if choice.family:
                measured[choice.family] = self.times[choice.name]


def _settled(seconds: Sequence[float]) -> Sequence[float]:
    """The first ones are not like the others."""
    return seconds[_SETTLING:] or seconds


def say_expected(controller: Controller) -> None:
    """A line for the operator: what each choice should do, and which is taken."""
    rates = ", ".join(f"{name} {rate:.1f}" for name, rate in controller.predicted().items())
    if len(controller.choices) > 1:
        chosen = controller.begin(_USUAL_TOKENS).choice.name
        print(f"calibrated: {rates} tok/s expected; drafting with {chosen} at first", file=sys.stderr, flush=True)


class _Kept(msgspec.Struct):
    """The file behind `load_times`."""

    key: str
    times: dict[str, Times]


def load_times(config: EngineConfig) -> Mapping[str, Times] | None:
    """What an earlier start has measured with the same machine and settings."""
    key = _key(config)
    try:
        kept = msgspec.json.decode(_file(key).read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return None  # there is none, or it is of another version: it is measured again
    return kept.times if kept.key == key else None


def save_times(config: EngineConfig, times: Mapping[str, Times]) -> None:
    """Keeps `times` for `load_times`; where that cannot be done, it is said and nothing else happens."""
    key = _key(config)
    try:
        _file(key).write_bytes(msgspec.json.encode(_Kept(key, dict(times))))
    except OSError as error:
        print(f"calibration not kept for the next start: {error}", file=sys.stderr, flush=True)


def _file(key: str) -> Path:
    folder = cache_folder() / "calibration"
    folder.mkdir(exist_ok=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _key(config: EngineConfig) -> str:
    settings = msgspec.to_builtins(config)
    del settings["endpoints"]
    return msgspec.json.encode([_FORMAT, platform.node(), _processor(), available_cores(), settings]).decode()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")

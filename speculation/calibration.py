"""Calibration: what each choice costs on this machine, measured by requests that the engine makes itself.

A short text is decoded with drafts that are all right, then all wrong, then with none, while each drafter does its
work. These are ordinary requests through the real pipeline, so they also open its links and warm its kernels, and
whatever a drafter does to the stages is in the times. All are run in turn, in short rounds: what else the machine does
meanwhile hits none of them alone, only ever slows, and shows in the spread. So of each time the low end is taken, and
where the spread is large there are more rounds.
"""

import statistics
from collections.abc import Iterator, Sequence

from speculation.decisions.estimates import Choice, Judgement, JudgementReader, Measured, Times
from speculation.drafters.base import PENDING, Answer, Draft
from workers.shared.config import MEASURED_ROWS
from workers.shared.messages import Generate, Sampling

_PROMPT = 16  # tokens
_RIGHT, _WRONG, _SILENT = 7, 5, 5  # tokens with drafts of each kind
_OUTPUT = _RIGHT + _WRONG + _SILENT
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 5
_MOST_SECONDS = 8.0  # after which no further round begins
_STEADY = 1.1  # spread of times on a machine that does nothing else
_INSTANT = 1e-9  # seconds; less than any sample takes, and more than nothing
_FREE = 0.02  # of the time of a sample: a drafter that takes less costs what plain decoding does


class Rehearsal:
    """One run: stands in for a session, always with the same choice, and keeps the times of its samples."""

    def __init__(
        self, choice: Choice, request: Generate, reader: JudgementReader, right: Sequence[int] = (), vocab_size: int = 1
    ) -> None:
        """`right` is the text, if it is known: what is drafted is made of it, and of tokens that are not."""
        self.choice = choice
        self.request = request
        self.listening = True
        self.seconds: dict[Judgement, list[float]] = {verdict: [] for verdict in Judgement}
        self.first = 0.0  # seconds until the first sample
        self.draft = 0.0  # seconds
        self.text: Sequence[int] = ()
        self._reader = reader
        turn, end = _PROMPT + _RIGHT, _PROMPT + _RIGHT + _WRONG
        self._drafts = [*right[:turn], *((token + 1) % vocab_size for token in right[turn:end])]
        self._began = self._last = 0.0

    @property
    def took(self) -> float:
        """Seconds from the beginning to the last sample."""
        return self._last - self._began

    def begins(self, now: float) -> None:
        """The request starts at `now`."""
        self._began = self._last = now

    def overrule(self, position: int, answer: Answer) -> Answer:
        """The drafter has done its work; what is drafted is what this run is to have."""
        if answer is PENDING or position >= len(self._drafts):
            return PENDING if answer is PENDING else None
        return Draft((self._drafts[position],))

    def answered(self) -> None:
        """Of no interest."""

    def foreseen(self, choice: Choice, verdict: Judgement) -> None:
        """Of no interest."""

    def deafen(self) -> None:
        """No hidden states are lost: the prompt is computed anew."""

    def end(self) -> None:
        """Of no interest."""

    def sampled(self, now: float, cycles: int, tokens: int, *, rejected: bool, alone: bool = True) -> None:
        """Notes the time since the last sample."""
        verdict = self._reader.read(cycles, tokens, rejected=rejected)
        if self.first:
            self.seconds[verdict].append(now - self._last)
        else:
            self.first = now - self._last
        self._last = now

    def ended(self, text: Sequence[int], draft_seconds: float) -> None:
        """Prompt and output are `text`; the drafter took `draft_seconds` in all."""
        self.text = tuple(text)
        self.draft = draft_seconds / _OUTPUT


class Calibration:
    """The runs to make, one after the other, and what came of them."""

    def __init__(self, choices: Sequence[Choice], stages: int, vocab_size: int, width: int = 1) -> None:
        """`choices` has one of the name "none", and goes from the cheapest to the dearest."""
        self._choices = choices
        self._stages = stages
        self._vocab_size = vocab_size
        self._width = width
        self._plain = next(choice for choice in choices if choice.name == "none")
        # The dearest of a family stands for all of it.
        self._contenders = {choice.family or choice.name: choice for choice in choices if choice is not self._plain}
        self._done: dict[Choice, list[Rehearsal]] = {choice: [] for choice in choices}
        self._rows: dict[int, list[float]] = {}
        self._hurried = False

    @staticmethod
    def fits(room: int) -> bool:
        """Whether the runs fit sequences of `room` tokens."""
        return room >= _PROMPT + _OUTPUT

    def hurry(self) -> None:
        """Somebody waits: no further round begins after the first."""
        self._hurried = True

    def runs(self, chunk: int) -> Iterator[Rehearsal]:
        """Each run, to be made before the next is asked for; prompts go in chunks of `chunk` tokens."""
        first = self._run(self._plain)
        yield first
        spent = first.took
        for number in range(_MOST_ROUNDS):
            if number and (self._hurried or spent > _MOST_SECONDS):
                return
            if number >= _LEAST_ROUNDS and self._spread() <= _STEADY:
                return
            contenders = [choice for choice in self._contenders.values() if not self._is_free(choice)]
            turn = [self._plain, *contenders]
            for choice in turn if number % 2 else reversed(turn):
                run = self._run(choice, first.text)
                yield run
                self._done[choice].append(run)
                spent += run.took
            for rows in (rows for rows in MEASURED_ROWS if rows <= chunk):
                run = Rehearsal(self._plain, self._request(rows, 1), self._reader())
                yield run
                self._rows.setdefault(rows, []).append(run.first)
                spent += run.took

    def measured(self) -> Measured:
        """What the runs have shown."""
        plain = self._times(self._plain)
        times = {self._plain.name: plain}
        drafts = {}
        for choice in self._choices:
            if choice is self._plain:
                continue
            of = self._contenders[choice.family or choice.name]
            # Whatever was measured, work for drafts makes no stage faster.
            own = self._times(of)
            pairs = {name: max(getattr(own, name), getattr(plain, name)) for name in Times.__struct_fields__}
            times[choice.name] = Times(**pairs)
            drafts[choice.name] = min(run.draft for run in self._done[of])
        return Measured(
            times=times,
            drafts=drafts,
            rows={rows: min(seconds) for rows, seconds in self._rows.items()},
            free=[choice.name for choice in self._choices if choice is not self._plain and self._is_free(choice)],
            spread=self._spread(),
        )

    def _request(self, prompt: int, output: int) -> Generate:
        tokens = [place % self._vocab_size for place in range(prompt)]
        return Generate("calibration", tokens, output, Sampling(seed=0, temperature=0))

    def _reader(self) -> JudgementReader:
        return JudgementReader(self._stages, self._width)

    def _run(self, choice: Choice, right: Sequence[int] = ()) -> Rehearsal:
        return Rehearsal(choice, self._request(_PROMPT, _OUTPUT), self._reader(), right, self._vocab_size)

    def _is_free(self, choice: Choice) -> bool:
        if choice.apart:
            return False
        runs = self._done[self._contenders[choice.family or choice.name]]
        return bool(runs) and min(run.draft for run in runs) < _FREE * self._times(self._plain).right

    def _seconds(self, choice: Choice, verdict: Judgement) -> list[float]:
        """All times of its samples, in order of size. The first of a run is not like the others."""
        runs = [run.seconds[verdict] for run in self._done[choice]]
        return sorted(seconds for run in runs for seconds in run[1:] or run)

    def _times(self, choice: Choice) -> Times:
        silent = _low(self._seconds(choice, Judgement.SILENT))
        wrong = _low(self._seconds(choice, Judgement.WRONG), silent)
        return Times(right=_low(self._seconds(choice, Judgement.RIGHT), wrong), wrong=wrong, silent=silent)

    def _spread(self) -> float:
        """Times that the usual sample took of those that are believed: of the choice that was disturbed most."""
        return max(
            statistics.fmean(statistics.median(known) / _low(known) for known in self._all_seconds(choice) if known)
            for choice in self._choices
            if self._done[choice]
        )

    def _all_seconds(self, choice: Choice) -> list[list[float]]:
        return [self._seconds(choice, verdict) for verdict in Judgement]


def _low(ordered: Sequence[float], otherwise: float = _INSTANT) -> float:
    """The lower quartile: what was disturbed took longer, and the very least may be luck."""
    return max(ordered[len(ordered) // 4], _INSTANT) if ordered else otherwise

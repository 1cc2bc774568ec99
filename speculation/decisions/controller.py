"""Which drafter a request uses, so that speculation never loses. No torch, no sockets, no clock.

What a choice costs is a matter of the machine: the time of a sample after a draft that was right, after one that was
wrong, and after none. How often each happens is a matter of the text. Both are known before anything is tried, from the
calibration and from priors, and measured in use. Together they are the seconds a token of every choice; the least is
taken. What is not in use is tried now and then, for as much as probes may cost. See docs/design.md, "The controller".
"""

from collections.abc import Sequence
from typing import TypeVar

from speculation.decisions.estimates import Average, Choice, Hits, Judgement, JudgementReader, Measured, Paces
from speculation.decisions.shapes.costs import FrameCosts, row_costs
from workers.shared.messages import ControllerStatus

_Answer = TypeVar("_Answer")

_TEXT_HORIZON = 64.0  # samples after which what was right in a request is old
_MEMORY_HORIZON = 512.0  # the same across requests
_MEMORY_WEIGHT = 12.0  # samples that the memory is worth at most when a request starts
_TOO_LITTLE = 0.005  # gain for which the next dearer choice is not taken
_HABIT = 0.01  # gain for which the choice in use is not left
_BENEFIT = 0.5  # of the doubt, in standard errors of the share that is right, has the choice in use
_PROBE_SAMPLES = 8
_PROBE_SHARE = 0.01  # of all time may be lost to probes
_SURPRISE = 1.2  # times of what was believed that a choice takes, when the others are to be looked at again
_SURPRISE_SAMPLES = 3.0  # that a probe may cost then, beyond its share of the time
_FIRST_WAIT = 16  # samples before what lost is tried again; doubles with every loss
_LONGEST_WAIT = 8192
_HOPE = 0.7  # of its best time: what would lose even then is not tried
_USUAL_ANSWER = 256.0  # tokens, before any answer is known


class Controller:
    """What is known of every choice across requests, and what probes have cost. Seconds are by the caller's clock."""

    def __init__(
        self, stages: int, choices: Sequence[Choice], measured: Measured | None = None, *, width: int = 1
    ) -> None:
        """`choices` go from the cheapest to the dearest; `measured` is the calibration's. A single choice always runs.

        `width` is that of the frame policy: most tokens of a decode frame.
        """
        if not choices:
            raise ValueError("a controller needs at least one choice")
        self.choices = tuple(choices)
        self.stages = stages
        self.width = width
        self.current = self.choices[0]  # of whichever request was decided on last
        self.switches = 0
        self.probes = 0
        self.hits = Hits(self.choices, _MEMORY_HORIZON)
        self.calibrated = measured is not None or len(self.choices) == 1
        self.paces = Paces(self.choices, stages, measured, width)
        self._measured = measured
        self.answer = Average(_USUAL_ANSWER)  # tokens
        self.wake = {choice: Average(0.0) for choice in self.choices}  # seconds lost before its first draft
        self._wait = dict.fromkeys(self.choices, _FIRST_WAIT)
        self._due = dict.fromkeys(self.choices, _FIRST_WAIT)
        self._last_loss = dict.fromkeys(self.choices, 0.0)  # seconds, of the last probe
        self._believed = self._levels()  # seconds of a sample, when the choices were last looked at
        self.contradicted = False  # requests took much longer than the calibration says
        self._samples = 0
        self._seconds = 0.0
        self._lost = 0.0  # seconds, to probes
        self._allowed = 0.0  # seconds that probes may lose beyond their share

    def costs(self, choice: Choice) -> FrameCosts:
        """What is known of the pipeline of `choice`, for the shape of its frames."""
        known = self._measured
        times = None if known is None else known.times.get(choice.name)
        if known is None or times is None:
            return FrameCosts()
        return FrameCosts(times.right, known.drafts.get(choice.name, 0.0), row_costs(known.rows))

    def calibrate(self, measured: Measured) -> None:
        """Takes what was measured before any request."""
        self.paces = Paces(self.choices, self.stages, measured, self.width)
        self._measured = measured
        self.calibrated = True
        self._believed = self._levels()

    def status(self) -> ControllerStatus:
        """The choice, and why."""
        return ControllerStatus(self.current.name, self.predicted(), self.switches, self.probes, self.calibrated)

    def begin(self, limit: int) -> "Session":
        """A request of at most `limit` tokens starts."""
        return Session(self, limit)

    def predicted(self) -> dict[str, float]:
        """Tokens a second of every choice, by what was right lately."""
        return {choice.name: 1.0 / self.paces.seconds(choice, self.hits.shares(choice)) for choice in self.choices}

    def due(self, choice: Choice) -> int:
        """Samples until `choice` may be tried again."""
        return self._due[choice] - self._samples

    def affords(self, choice: Choice, seconds: float, ahead: float = 0.0) -> bool:
        """Whether a probe of `choice` that should lose `seconds`, or what the last one did, is within the budget.

        It is that of `ahead` seconds from now.
        """
        budget = _PROBE_SHARE * (self._seconds + ahead) + self._allowed
        return self._lost + max(seconds, self._last_loss[choice]) <= budget

    def learn(self, choice: Choice, seconds: float, tokens: int, verdict: Judgement) -> None:
        """A sample with `choice` took `seconds`. If that is much more than was believed, all is to be looked at again.

        The machine may have become slower, or the calibration may have been wrong: only trying others can tell.
        """
        scaled = self.paces.scaled
        self.paces.add(choice, seconds, tokens, verdict)
        if not scaled:
            self._believed = self._levels()
        level = self.paces.level(choice)
        if level > _SURPRISE * self._believed[choice]:
            self.contradicted = True
            self._believed = self._levels()
            self._allowed += _SURPRISE_SAMPLES * level
            if self._measured is not None:
                self.paces.doubt()
            for other in self.choices:
                self._last_loss[other] = 0.0
                self._wait[other] = _FIRST_WAIT
                self._due[other] = self._samples

    def pass_sample(self, seconds: float) -> None:
        """A sample has arrived, `seconds` after the one before: everything known is older."""
        self._samples += 1
        self._seconds += seconds
        self.hits.age()

    def tried(self, choice: Choice, lost: float, *, won: bool) -> None:
        """A probe of `choice` has cost `lost` seconds more than going on would have."""
        self.probes += 1
        self._lost += max(0.0, lost)
        self._last_loss[choice] = max(0.0, lost)
        self._wait[choice] = _FIRST_WAIT if won else min(2 * self._wait[choice], _LONGEST_WAIT)
        self._due[choice] = self._samples + self._wait[choice]

    def _levels(self) -> dict[Choice, float]:
        return {choice: self.paces.level(choice) for choice in self.choices}

    def take(self, choice: Choice) -> None:
        """A request goes on with `choice`."""
        self.switches += choice is not self.current
        self.current = choice


class Session:
    """The choice of one request, as it goes.

    A choice that listens is only taken while `listening`, which never comes back: hidden states that were not sent are
    lost. It ends when no such choice is in use or likely to be tried again before the request ends.
    """

    def __init__(self, controller: Controller, limit: int) -> None:
        """Use `Controller.begin`."""
        self._controller = controller
        self._hits = controller.hits.copy(_TEXT_HORIZON, _MEMORY_WEIGHT)
        self._limit = limit
        self._given = 0
        self._last: float | None = None
        self._reader = JudgementReader(controller.stages, controller.width)
        self._probe = 0  # samples that the running probe has left
        self._lost = 0.0  # seconds, to it or to a choice that has not answered yet
        self._asleep = {choice for choice in controller.choices if choice.listens}  # those that have not answered yet
        self._settling = 0  # samples that are still of the choice before
        self.choice = controller.choices[0]
        self.listening = True
        self._take(self._best())
        self._stop_listening()

    def deafen(self) -> None:
        """Hidden states that `choice` does not need have been lost."""
        if self.choice.listens:
            raise ValueError(f"{self.choice.name} is in use, and needs hidden states")
        self.listening = False

    def foreseen(self, choice: Choice, verdict: Judgement) -> None:
        """What would have become of the draft of `choice`, which is not in use, for the newest token."""
        self._learn(choice, verdict)

    def answered(self) -> None:
        """The choice in use has drafted, or has nothing to draft: it keeps up with the text."""
        if self.choice in self._asleep:
            self._asleep.remove(self.choice)
            self._controller.wake[self.choice].add(max(0.0, self._lost))

    def overrule(self, position: int, answer: _Answer) -> _Answer:
        """The drafter has its say."""
        return answer

    def sampled(self, now: float, cycles: int, tokens: int, *, rejected: bool, alone: bool = True) -> None:
        """`tokens` were verified at `now`, and cost `cycles` pipeline cycles; `rejected`: a draft was wrong.

        Beside other requests, which have credits of their own, times say nothing of a choice, and a draft that was not
        made may have lacked a credit; drafts that were made tell as much as ever. The first sample of a request is the
        prompt's.
        """
        first = not self._given
        last, self._last = self._last, now if alone else None
        verdict = self._reader.read(cycles, tokens, rejected=rejected)
        self._given += tokens
        if last is None:
            if not first:
                self._beside_others(verdict)
            return
        seconds = now - last
        self._controller.pass_sample(seconds)
        self._hits.age()
        if self._probe or self.choice in self._asleep:
            self._lost += seconds - tokens * min(map(self._seconds, self._others()), default=0.0)
        if self.choice in self._asleep and (not self._probe or self._controller.affords(self.choice, self._lost)):
            return
        if self._settles(verdict):
            return
        self._learn(self.choice, verdict)
        self._controller.learn(self.choice, seconds, tokens, verdict)
        self._decide()

    def end(self) -> None:
        """The request has ended."""
        self._controller.answer.add(self._given)

    def _beside_others(self, verdict: Judgement) -> None:
        """Goes on with the best choice, by the times of requests that were alone; nothing is tried."""
        self._probe = 0
        self._hits.age()
        self._controller.hits.age()
        if not self._settles(verdict) and verdict is not Judgement.SILENT:
            self._learn(self.choice, verdict)
        self._take(self._best())
        self._stop_listening()

    def _settles(self, verdict: Judgement) -> bool:
        """Whether the newest sample is still the doing of the choice before."""
        if not self._settling:
            return False
        self._settling = self._settling - 1 if verdict is Judgement.RIGHT else 0
        return True

    def _learn(self, choice: Choice, verdict: Judgement) -> None:
        self._hits.add(choice, verdict)
        self._controller.hits.add(choice, verdict)

    def _decide(self) -> None:
        """Goes on with the running probe, or with the best choice and perhaps a probe."""
        if self._probe > 1 and self._controller.affords(self.choice, self._lost):
            self._probe -= 1
            return
        tried, lost = (self.choice, self._lost) if self._probe else (None, 0.0)
        self._probe = 0
        self._take(self._best())
        if tried is not None:
            self._controller.tried(tried, lost, won=self.choice is tried)
        else:
            self._try()
        self._stop_listening()

    def _open(self) -> list[Choice]:
        return [choice for choice in self._controller.choices if self.listening or not choice.listens]

    def _others(self) -> list[Choice]:
        return [choice for choice in self._open() if choice is not self.choice]

    def _seconds(self, choice: Choice) -> float:
        """Seconds a token, with what is lost before its first draft shared among the tokens to come."""
        seconds = self._controller.paces.seconds(choice, self._hits.shares(choice))
        if choice in self._asleep and choice is not self.choice:
            seconds += self._controller.wake[choice].value / max(self._remaining(), 1.0)
        return seconds

    def _best(self) -> Choice:
        """The fastest choice; of those that can hardly be told apart the one in use, or the cheapest.

        The less is known of the text, the more evidence it takes to leave the one in use. Where there are no times at
        all, the cheapest gives the scale.
        """
        if not self._controller.paces.scaled:
            return self._controller.choices[0]

        def cost(choice: Choice) -> float:
            seconds = self._seconds(choice) * (1.0 + _TOO_LITTLE * self._controller.choices.index(choice))
            if choice is self.choice:
                seconds *= 1.0 - _HABIT
                seconds -= _BENEFIT * self._hits.doubt(choice) * self._controller.paces.stake(choice)
            return seconds

        return min(self._open(), key=cost)

    def _take(self, choice: Choice) -> None:
        if choice is not self.choice:
            self._lost = 0.0
            self._settling = self._controller.stages if self._given else 0
        self.choice = choice
        self._controller.take(choice)

    def _try(self) -> None:
        """Begins a probe of the choice that would lose least, of those that may be tried."""
        due = [choice for choice in self._others() if self._may_be_tried(choice, 0.0)]
        if due and self._remaining() >= 2 * _PROBE_SAMPLES:
            self._take(min(due, key=self._seconds))
            self._probe = _PROBE_SAMPLES

    def _may_be_tried(self, choice: Choice, tokens: float) -> bool:
        """Whether a probe of `choice` is due within so many `tokens`, is affordable then, and not without hope."""
        now, controller = self._seconds(self.choice), self._controller
        if self._is_known(choice) or controller.due(choice) > tokens:
            return False
        if _HOPE * controller.paces.at_best(choice) >= now:
            return False
        return controller.affords(choice, _PROBE_SAMPLES * (self._seconds(choice) - now), tokens * now)

    def _is_known(self, choice: Choice) -> bool:
        """Whether `choice` is nothing but what the one in use does where it is silent, as far as can be told.

        Where requests take other times than the calibration says, stages may be in each other's way when all work.
        """
        controller = self._controller
        return not (choice.prior or controller.contradicted) and controller.paces.shared(choice, self.choice)

    def _remaining(self) -> float:
        """Tokens that are likely still to come: as many as usual, or as there have been."""
        return min(self._limit - self._given, max(self._controller.answer.value, self._given))

    def _stop_listening(self) -> None:
        if not (self._probe or self.choice.listens):
            listeners = [choice for choice in self._open() if choice.listens]
            self.listening = any(self._may_be_tried(choice, self._remaining()) for choice in listeners)

"""The process of one model of a cascade: takes in what its neighbours have written, computes, and tells them.

Decisions are in `speculation.decisions.cascade.writer`; this is the shell around them. One pass at a time, of the slot
whose turn it is; messages are read between two passes.
"""

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from speculation.cascade.line import SmallerLine
from speculation.cascade.messages import LeaveCascade, ModelsReport, OpenText, ToSmaller
from speculation.decisions.cascade.writer import CascadeWriter, Pass
from speculation.decisions.turns import Turns
from speculation.wakeup import Wakeup
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.bus import Intake, encode
from workers.shared.cascade.figures import ModelFigures
from workers.shared.errors import OutOfStep, PeerLost
from workers.shared.links import Link, Listener

_INTERVAL = 1.0  # seconds between two reports, and between two looks at what is waited for
_UNREACHED = 0.2  # seconds between two looks for the next smaller model


class WholeModel(Protocol):
    """What is needed of a model (`workers.model.shard.Shard`)."""

    def copy(self, source: int, target: int, positions: int) -> None:
        """The first `positions` of slot `target` are from now on those of slot `source`."""

    def forward(self, sequence: int, position: int, tokens: Sequence[int], hidden: Tensor | None) -> Tensor:
        """`[T, H]` behind the last layer."""

    def row_logits(self, hidden: Tensor) -> Tensor:
        """`[T, V]` float32 logits after every row of `hidden` `[T, H]`."""


class CascadeModel:
    """Serves one bigger model, whichever has connected last, until it is told to leave."""

    def __init__(
        self,
        model: WholeModel,
        sampler: Sampler,
        writers: Sequence[CascadeWriter],
        listener: Listener,
        smaller: SmallerLine | None,
        figures: ModelFigures,
    ) -> None:
        """`writers` are one a slot, and count in `figures`."""
        self._model = model
        self._sampler = sampler
        self._writers = writers
        self._histories = [History(0, writer.sampling) for writer in writers]
        self._listener = listener
        self._bigger: Link | None = None
        self._smaller = smaller
        self._figures = figures
        self._turns = Turns()
        self._intake: Intake[ToSmaller] = Intake(ToSmaller, f"link of {figures.name}")
        self._wakeup = Wakeup()
        self._wakeup.watch(listener.fileno())
        if smaller is not None:
            self._wakeup.watch(smaller.fileno())
        self._report_at = 0.0  # monotonic seconds
        self._began = time.perf_counter_ns()
        self._waited_since: dict[int, float] = {}  # monotonic seconds, of slots that wait for drafts
        self._leaving = False

    def stop(self) -> None:
        """Makes `run` return soon."""
        self._leaving = True

    @torch.inference_mode()
    def run(self) -> None:
        """Works until told to leave."""
        try:
            while not self._leaving:
                worked = self._step()
                self._tell()
                self._listen(0.0 if worked else self._patience())
        finally:
            if self._smaller is not None:
                if self._leaving:  # and not where this process has failed, and will be back
                    self._smaller.dismiss()
                self._smaller.close()
            if self._bigger is not None:
                self._bigger.close()
            self._listener.close()

    # --- what there is to compute ---

    def _step(self) -> bool:
        """One pass, of the slot that was served longest ago; returns whether there was any to make."""
        for slot in self._turns.order(range(len(self._writers))):
            if (work := self._work(slot)) is not None:
                self._turns.took(slot)
                started = time.perf_counter_ns()
                self._compute(slot, work)
                self._figures.busy_ns += time.perf_counter_ns() - started
                return True
        return False

    def _work(self, slot: int) -> Pass | None:
        """What there is to compute; without the drafts that were to be waited for where they do not come."""
        writer = self._writers[slot]
        work = writer.work()
        alone = writer.work(patient=False) if work is None else None
        if alone is None:
            self._waited_since.pop(slot, None)
            return work
        now = time.monotonic()
        waited = now - self._waited_since.setdefault(slot, now)
        hopes = self._smaller is not None and self._smaller.connected and waited < _INTERVAL
        return None if hopes else alone

    def _compute(self, slot: int, work: Pass) -> None:
        writer = self._writers[slot]
        hidden = self._model.forward(slot, work.position, work.tokens, None)
        if not work.samples:
            writer.computed(work)
            return
        history = self._histories[slot]
        history.write(*writer.unsampled())
        written: list[int] = []
        for place, logits in enumerate(self._model.row_logits(hidden[-len(work.drafts) - 1 :])):
            shaped = self._sampler.shape(logits, writer.sampling, history)
            # The noise is that of the position, as at the target: models that agree sample the same token.
            written.append(int(self._sampler.perturb(shaped, writer.sampling, len(history)).argmax()))
            if place == len(work.drafts) or written[-1] != work.drafts[place]:
                break
            history.write(len(history), written[-1:])
        writer.computed(work, written)

    # --- what the neighbours say ---

    def _patience(self) -> float:
        lonely = self._smaller is not None and not self._smaller.connected
        return _UNREACHED if lonely else _INTERVAL

    def _listen(self, seconds: float) -> None:
        """Sleeps until a message arrives or `seconds` have passed, and takes in what there is."""
        for descriptor, _ in self._wakeup.wait(seconds):
            if descriptor == self._listener.fileno():
                self._accept()
            elif self._smaller is not None and descriptor == self._smaller.fileno():
                self._smaller.arrived()
        while (link := self._bigger) is not None and not self._leaving:
            try:
                data = link.receive()
                if data is None:
                    return
                self._hear(self._intake.read(data))
            except (PeerLost, OutOfStep):
                self._part()  # nothing is lost: whoever connects next tells everything

    def _hear(self, message: ToSmaller | None) -> None:
        if isinstance(message, LeaveCascade):
            self._leaving = True
        elif message is None or message.slot >= len(self._writers):
            return
        elif isinstance(message, OpenText):
            self._open(message)
        else:
            self._writers[message.slot].heard(message)

    def _open(self, message: OpenText) -> None:
        """Keeps what the slot holds of the request's text, or copies what another one does."""
        slot = message.slot
        held = [_common(writer.held, message.tokens) for writer in self._writers]
        best = max(range(len(held)), key=lambda other: (held[other], other == slot))
        if best != slot:
            self._model.copy(best, slot, held[best])
        self._writers[slot].open(message, held[best])
        self._histories[slot] = History(message.prompt, message.sampling)

    def _accept(self) -> None:
        fresh = self._listener.accept()
        if fresh is not None:
            if self._bigger is not None:
                self._part()
            self._bigger = fresh
            self._wakeup.watch(fresh.fileno())
            self._report_at = 0.0

    def _part(self) -> None:
        """The bigger model has gone, or makes no sense."""
        assert self._bigger is not None
        self._wakeup.forget(self._bigger.fileno())
        self._bigger.close()
        self._bigger = None
        for writer in self._writers:
            writer.close()

    # --- what is told ---

    def _tell(self) -> None:
        """Tells both neighbours what is new."""
        try:
            for writer in self._writers:
                if self._takes() and (news := writer.news()) is not None:
                    self._send(encode(news))
            self._report()
        except PeerLost:
            self._part()
        if self._smaller is not None:
            self._smaller.tell()

    def _report(self) -> None:
        if time.monotonic() < self._report_at or not self._takes():
            return
        self._report_at = time.monotonic() + _INTERVAL
        self._figures.total_ns = time.perf_counter_ns() - self._began
        below = () if self._smaller is None else self._smaller.figures()
        self._send(encode(ModelsReport([*below, self._figures])))

    def _takes(self) -> bool:
        """Whether the bigger model is there and takes what it is sent."""
        if self._bigger is not None and self._bigger.kept:
            self._bigger.flush()
        return self._bigger is not None and not self._bigger.kept

    def _send(self, data: bytes) -> None:
        assert self._bigger is not None
        self._bigger.send(data)


def _common(held: Sequence[int], tokens: Sequence[int]) -> int:
    most = min(len(held), len(tokens))
    return next((place for place in range(most) if held[place] != tokens[place]), most)

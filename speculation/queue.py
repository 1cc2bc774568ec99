"""Requests that wait: for their grammar, for a slot, or for a prompt that begins like theirs."""

from collections.abc import Callable
from itertools import islice

from speculation.decisions.grammar_gate import GrammarGate
from speculation.decisions.waiting import WaitingLine
from speculation.stream import Request
from workers.shared.messages import Compile, Generate


class RequestQueue:
    """Those with a grammar that is compiled, or without one, are in line; whoever is first in line starts first."""

    def __init__(self) -> None:
        self._gate: GrammarGate[Request] = GrammarGate()
        self._line: WaitingLine[Request] = WaitingLine()

    def waiting(self) -> list[Request]:
        """All of them, those in line first."""
        return [*self._line, *self._gate.waiting]

    @property
    def in_line(self) -> int:
        """How many could start if there were slots."""
        return len(self._line)

    def arrived(self, client: bytes, generate: Generate) -> Compile | None:
        """A request is to wait; returns what is to be compiled for it, if anything is."""
        ahead = sum(request.generate.priority <= generate.priority for request in self.waiting())
        passed, todo = self._gate.arrived(Request(client, generate, ahead), generate.sampling.grammar)
        self._join(passed)
        return todo

    def compiled(self, number: int) -> None:
        """A grammar is ready."""
        self._join(self._gate.compiled(number))

    def leave(self, request: Request) -> None:
        """A request is given up."""
        if not self._gate.leave(request):
            self._line.remove(request)

    def next(self, idle: int, fits: Callable[[Request], bool], held_back: Callable[[Request], bool]) -> Request | None:
        """Who starts now that so many slots are `idle`; it waits no more.

        One that is held back keeps a slot free for itself, and nobody goes before one that does not fit: neither is
        passed over for ever.
        """
        for request in islice(self._line, idle):
            if not fits(request):
                return None
            if not held_back(request):
                self._line.remove(request)
                return request
        return None

    def _join(self, requests: list[Request]) -> None:
        for request in requests:
            self._line.join(request, request.generate.priority)

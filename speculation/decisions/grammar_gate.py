"""Which requests wait for a grammar to be compiled, which takes seconds and is done beside. No sockets, no threads."""

from collections import OrderedDict
from typing import Generic, TypeVar

from workers.shared.messages import Compile

Waiting = TypeVar("Waiting")

_KNOWN = 32  # grammars that are taken for compiled: as many as whoever compiles them remembers


class GrammarGate(Generic[Waiting]):
    """A request passes once its grammar is compiled, and those without one at once.

    Invariant: everything that has arrived either has passed, once, or is in `waiting`.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._compiling: dict[int, str] = {}  # grammars, by the number of the message that asked for them
        self._waiting: dict[str, list[Waiting]] = {}  # by grammar
        self._number = 0

    @property
    def waiting(self) -> list[Waiting]:
        """Those that have not passed."""
        return [request for requests in self._waiting.values() for request in requests]

    def arrived(self, request: Waiting, grammar: str | None) -> tuple[list[Waiting], Compile | None]:
        """What may start now, which is `request` or nothing; and what is to be compiled, if anything is."""
        if grammar is None:
            return [request], None
        if grammar in self._known:
            self._known.move_to_end(grammar)
            return [request], None
        self._waiting.setdefault(grammar, []).append(request)
        if grammar in self._compiling.values():
            return [], None
        self._number += 1
        self._compiling[self._number] = grammar
        return [], Compile(self._number, grammar)

    def compiled(self, number: int) -> list[Waiting]:
        """A grammar is ready; returns what may start now. Unknown numbers mean nothing."""
        grammar = self._compiling.pop(number, None)
        if grammar is None:
            return []
        self._known[grammar] = None
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return self._waiting.pop(grammar, [])

    def leave(self, request: Waiting) -> bool:
        """A request is given up; returns whether it was waiting here. Its grammar goes on being compiled."""
        for requests in self._waiting.values():
            if request in requests:
                requests.remove(request)
                return True
        return False

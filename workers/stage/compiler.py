"""Grammars are compiled beside the last stage's loop: it takes up to seconds, in which other sequences go on."""

from concurrent.futures import Future, wait

from llguidance import LLMatcher

from workers.shared.grammar import Grammars
from workers.shared.messages import Compile

_AT_ONCE = 0.01  # seconds that the loop waits itself: most grammars take less


class GrammarCompiler:
    """Invariant: every number is told by `finished` once, when its grammar is compiled."""

    def __init__(self, grammars: Grammars | None) -> None:
        """Without `grammars` there is nothing to compile, and requests that have one fail with their first sample."""
        self._grammars = grammars
        self._running: dict[int, Future[LLMatcher]] = {}
        self._finished: list[int] = []

    def compile(self, message: Compile) -> None:
        """Begins."""
        if self._grammars is None:
            self._finished.append(message.number)
            return
        self._running[message.number] = self._grammars.prepare(message.grammar)
        wait(self._running.values(), _AT_ONCE)

    def finished(self) -> list[int]:
        """Numbers of the messages whose grammars are ready, or cannot be compiled, since the last call."""
        done = [number for number, future in self._running.items() if future.done()]
        for number in done:
            del self._running[number]
        finished, self._finished = [*self._finished, *done], []
        return finished

"""Grammars are compiled beside the last stage's loop: it takes seconds, and other sequences go on."""

from collections.abc import Callable
from typing import Any

import zmq

from workers.shared.bus import encode
from workers.shared.grammar import Grammars
from workers.shared.messages import Compile, Compiled

_LINGER_MS = 1000


class GrammarCompiler:
    """Says of each grammar when it is compiled, on a socket of its own: sockets belong to one thread."""

    def __init__(self, stage: int, grammars: Grammars | None, open_results: Callable[[], "zmq.Socket[Any]"]) -> None:
        """Without `grammars` there is nothing to compile, and requests fail with their first sample."""
        self._stage = stage
        self._grammars = grammars
        self._open_results = open_results

    def compile(self, message: Compile) -> None:
        """Returns at once."""
        if self._grammars is None:
            self._tell(message.number)
        else:
            self._grammars.prepare(message.grammar).add_done_callback(lambda _: self._tell(message.number))

    def _tell(self, number: int) -> None:
        results = self._open_results()
        results.send(encode(Compiled(self._stage, number)))
        results.close(linger=_LINGER_MS)

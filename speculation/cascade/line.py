"""The connection of a model, or of rank 0, to the process of the next smaller model, which may come and go."""

import select
import time
from collections.abc import Sequence

from speculation.cascade.messages import LeaveCascade, ModelsReport, ToBigger
from speculation.decisions.cascade.smaller import Smaller
from workers.shared.bus import Intake, encode
from workers.shared.cascade.figures import ModelFigures
from workers.shared.errors import OutOfStep, PeerLost
from workers.shared.links import Link, connect
from workers.shared.processes.logs import tell

_RETRY = 0.2  # seconds between two attempts to reach a process that is not there
_LAST_WORDS = 1.0  # seconds that its last message may take


class SmallerLine:
    """Never waits, and never fails: a process that is not there writes nothing.

    Nothing is sent while the other end does not take what was sent before. It is told the newest state then, so
    nothing piles up for one that is slow or stopped.
    """

    def __init__(self, endpoint: str, name: str, ends: Sequence[Smaller]) -> None:
        """`name` is the smaller model's, `ends` what is known of it in each slot."""
        self._endpoint = endpoint
        self._name = name
        self._ends = ends
        self._link: Link | None = None
        self._again = 0.0  # monotonic seconds; not to be tried before
        self._events = select.epoll()  # stands for whatever link there is
        self._intake: Intake[ToBigger] = Intake(ToBigger, f"link to {name}")
        self._figures: Sequence[ModelFigures] = ()

    @property
    def connected(self) -> bool:
        """Whether its process is there."""
        return self._link is not None

    def fileno(self) -> int:
        """Readable while `arrived` has something to do."""
        return self._events.fileno()

    def arrived(self) -> None:
        """Takes in all that the smaller model has sent, and notices that it has gone."""
        while (link := self._link) is not None:
            try:
                data = link.receive()
                if data is None:
                    return
                self._read(data)
            except PeerLost:
                self._lose("has gone")
            except OutOfStep as error:
                self._lose(str(error))

    def tell(self) -> None:
        """Sends what is new in any slot; connects where that is due."""
        if self._link is None and not self._reach():
            return
        for end in self._ends:
            if self._takes() and (news := end.news()) is not None:
                self._send(encode(news))

    def figures(self) -> Sequence[ModelFigures]:
        """The newest of it and of all smaller models."""
        return self._figures

    def dismiss(self) -> None:
        """Tells it to leave, where it is there."""
        if self._link is None:
            return
        try:
            self._link.send(encode(LeaveCascade()))
            self._link.drain(_LAST_WORDS)
        except PeerLost:
            return  # it has left already, or will be ended by whoever supervises it

    def close(self) -> None:
        """Ends the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._events.close()

    def _reach(self) -> bool:
        now = time.monotonic()
        if now < self._again:
            return False
        self._again = now + _RETRY
        try:
            self._link = connect(self._endpoint, self._name, 0.0)
        except PeerLost:
            return False
        self._events.register(self._link.fileno(), select.EPOLLIN)
        return True

    def _read(self, data: memoryview) -> None:
        message = self._intake.read(data)
        if isinstance(message, ModelsReport):
            self._figures = message.models
        elif message is not None and message.slot < len(self._ends):
            self._ends[message.slot].heard(message)

    def _takes(self) -> bool:
        """Whether what was sent so far is on its way."""
        if self._link is not None and self._link.kept:
            try:
                self._link.flush()
            except PeerLost:
                self._lose("has gone")
        return self._link is not None and not self._link.kept

    def _send(self, data: bytes) -> None:
        assert self._link is not None
        try:
            self._link.send(data)
        except PeerLost:
            self._lose("has gone")

    def _lose(self, why: str) -> None:
        assert self._link is not None
        tell(f"cascade: {self._name}: {why}; going on without it until it is back")
        self._events.unregister(self._link.fileno())
        self._link.close()
        self._link = None
        for end in self._ends:
            end.lost()

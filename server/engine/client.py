"""The server's end of the request bus: one DEALER socket to rank 0, shared by every open request."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import zmq

from server.engine.bus_reader import BusReader
from server.engine.departures import Departures
from server.engine.health import EngineHealth
from server.engine.rates import EngineFigures
from server.engine.recovery import Recovery
from server.engine.trace_feed import TraceFeed, Viewer
from workers.shared.bus import encode, open_socket
from workers.shared.errors import EchelonError
from workers.shared.fingerprint import disagreement
from workers.shared.live.messages import Trace, Watch
from workers.shared.messages import (
    Abort,
    EngineInfo,
    Failed,
    FromEngine,
    Generate,
    KeepAlive,
    Probe,
    Status,
    ToEngine,
    Tokens,
)

log = logging.getLogger("echelon.server")

_PROBE_INTERVAL = 1.0  # seconds
_SOON = 0.1  # of the interval, where somebody may be waiting for the answer to change


class EngineUnavailable(EchelonError):
    """The engine cannot be reached, has gone, or does not answer."""


class EngineFailed(EchelonError):
    """The engine has given up this request."""


class DeadlineExceeded(EchelonError):
    """The request has taken longer than this server allows."""


class QueueFull(EchelonError):
    """No more sequences may be opened now; `retry_after` seconds later there may be room."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Submission:
    """The open sequences of one HTTP request. `close` must be called, at the latest when the client has gone."""

    def __init__(self, client: "EngineClient", ids: Sequence[str]) -> None:
        self._client = client
        self._open = set(ids)
        self._inbox: asyncio.Queue[Tokens | EchelonError] = asyncio.Queue()

    async def get(self) -> Tokens:
        """The next message about any of the sequences; raises `EngineUnavailable` or `EngineFailed`."""
        item = await self._inbox.get()
        if isinstance(item, EchelonError):
            raise item
        return item

    def put(self, item: Tokens | EchelonError) -> None:
        """For the client's reader: the next message, or the error that ends the request."""
        self._inbox.put_nowait(item)

    def finished(self, sequence: str) -> None:
        """For the client's reader: the engine has ended this sequence."""
        self._open.discard(sequence)

    def abort(self, sequence: str) -> None:
        """Ends one sequence early; its slot in the queue is free at once."""
        if sequence in self._open:
            self._open.discard(sequence)
            self._client.abort(sequence)

    def close(self) -> None:
        """Aborts whatever is still open; may be called again."""
        for sequence in list(self._open):
            self.abort(sequence)


class EngineClient:
    """Invariant: every open sequence gets the messages of one engine that never failed, as it seems, or an error.

    The engine group may restart behind the same address, and a fresh engine knows nothing of old requests. So with a
    lost connection the socket is replaced, which drops whatever was not yet delivered; and as soon as an engine answers
    on the new one, `Recovery` says what it is to go on with. `max_queue` bounds the open sequences that wait, beside
    those that the engine runs at a time. An engine that does not bear `fingerprint` counts as absent.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        max_queue: int,
        health_timeout: float,
        clock: Callable[[], float],
        token: str = "",
        fingerprint: Mapping[str, str] | None = None,
        resume_attempts: int = 0,
        resume_timeout: float = 0.0,
        probe_interval: float = _PROBE_INTERVAL,
    ) -> None:
        """`token` is the secret of an engine that listens on tcp.

        `resume_attempts` and `resume_timeout` (seconds) bound how long a sequence waits for a lost engine.
        """
        self._endpoint = endpoint
        self._token = token
        self._max_queue = max_queue
        self._clock = clock
        self._probe_interval = probe_interval
        self._health = EngineHealth(health_timeout, probe_interval)
        self.figures = EngineFigures()
        self.resumed = 0  # sequences that were sent again
        self._feed = TraceFeed()
        self._fingerprint = {} if fingerprint is None else fingerprint
        self._known: Mapping[str, str] | None = None  # fingerprint of the engine that has the open sequences
        self._trouble = ""  # what was last found wrong with the engine
        self._recovery = Recovery(resume_attempts, resume_timeout, probe_interval)
        self._departures = Departures()
        self._submissions: dict[str, Submission] = {}  # by open sequence
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[Any] | None = None
        self._reader: BusReader | None = None
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._draining = False

    # --- what routes use ------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Whether the engine has lately answered a probe that went through its loop and every stage."""
        return self._health.healthy(self._clock()) and not self._closing

    @property
    def info(self) -> EngineInfo:
        """What the engine serves; raises `EngineUnavailable` unless it is healthy."""
        return self.status.info

    @property
    def ready_info(self) -> EngineInfo:
        """The same; raises `EngineUnavailable` also while requests would be taken, but would have to wait."""
        if self.status.calibrating:
            raise EngineUnavailable("the engine measures what its drafters gain here, which takes seconds")
        return self.info

    @property
    def status(self) -> Status:
        """The newest figures; raises `EngineUnavailable` unless the engine is healthy."""
        if self._draining:
            raise EngineUnavailable("the server is shutting down")
        if self.figures.status is None or not self.healthy:
            why = f" ({self._trouble})" if self._trouble else ""
            raise EngineUnavailable(f"the engine is starting, restarting or not answering; try again in a moment{why}")
        return self.figures.status

    @property
    def capacity(self) -> int:
        """Sequences that may be open: those that run and those that wait; raises `EngineUnavailable`."""
        return self.info.max_num_seqs + self._max_queue

    @property
    def open_sequences(self) -> int:
        """Sequences that run or wait."""
        return len(self._submissions)

    def submit(self, requests: Sequence[Generate]) -> Submission:
        """Opens all the sequences of one HTTP request, or none; raises `EngineUnavailable` or `QueueFull`."""
        capacity = self.capacity
        if self.open_sequences + len(requests) > capacity:
            wait = self._departures.retry_after(self.open_sequences + len(requests) - capacity)
            raise QueueFull(f"{self.open_sequences} of {capacity} sequences are open", wait)
        submission = Submission(self, [request.id for request in requests])
        for request in requests:
            self._submissions[request.id] = submission
            self._recovery.opened(request)
            self._send(request)
        return submission

    def abort(self, sequence: str) -> None:
        """Tells the engine to end a sequence, and forgets it."""
        if self._recovery.closed(sequence):
            del self._submissions[sequence]
            self._departures.left(self._clock())
            self._send(Abort(sequence))

    @contextlib.contextmanager
    def watching(self) -> Iterator[Viewer]:
        """What the pipeline does from now on; raises `TooManyViewers`."""
        with self._feed.viewer() as viewer:
            self._send(Watch(snapshot=True))
            yield viewer

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to connect; returns before the engine answers."""
        self._task = asyncio.create_task(self._run())

    def drain(self) -> None:
        """Opens no more sequences; those that are open go on."""
        self._draining = True

    def shut(self, reason: str) -> None:
        """Ends every open request with an error and refuses new ones."""
        self._closing = True
        self._give_up(list(self._recovery), reason)
        self._feed.end()

    async def stop(self) -> None:
        """Closes the connection."""
        self.shut("the server is shutting down")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._context.term()

    async def _run(self) -> None:
        while True:
            reason = await self._one_connection()
            served = self.figures.status is not None
            log.warning("engine lost: %s", reason)
            self._trouble = reason
            self._health.disconnected()
            self.figures = EngineFigures()
            self._give_up(self._recovery.lost(), reason)
            if not served:  # nor will the next connection, perhaps
                await asyncio.sleep(self._probe_interval)

    async def _one_connection(self) -> str:
        """Serves one connection to its end and says why it ended."""
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def lose(reason: str) -> None:
            if not lost.done():
                lost.set_result(reason)

        def take(data: bytes) -> None:
            try:
                self._dispatch(self._decoder.decode(data))
            except msgspec.MsgspecError as error:
                lose(f"the engine sent a message that cannot be read ({error})")

        socket = open_socket(self._context, zmq.DEALER, self._endpoint, bind=False, token=self._token)
        monitor = socket.get_monitor_socket(zmq.Event.DISCONNECTED)
        self._socket, self._reader = socket, BusReader(socket, take)
        watcher = BusReader(monitor, lambda _: lose("the connection to the engine was lost; it is restarting"))
        probing = asyncio.create_task(self._probe())
        try:
            return await lost
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            self._reader.close()
            watcher.close()
            self._socket, self._reader = None, None
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    async def _probe(self) -> None:
        while True:
            number = self._health.next_probe(self._clock())
            healthy = self._health.healthy(self._clock())
            if self.figures.status is not None and not healthy:
                self._trouble = "the engine does not answer"
            self._give_up(self._recovery.look(self._clock(), healthy=healthy), self._trouble)
            if number is not None:
                self._send(Probe(number))
            if self._feed.watched:
                self._send(Watch())
            calibrating = self.figures.status is not None and self.figures.status.calibrating
            await asyncio.sleep(_SOON * self._probe_interval if calibrating else self._probe_interval)

    # --- messages --------------------------------------------------------------------------------------------------

    def _send(self, message: ToEngine) -> None:
        if self._socket is not None and self._reader is not None:
            # Without a high-water mark the socket takes the message at once.
            self._socket.send(encode(message), zmq.DONTWAIT)
            self._reader.look()

    def _dispatch(self, message: FromEngine) -> None:
        if isinstance(message, Status):
            self._on_status(message)
            return
        if isinstance(message, KeepAlive):
            return
        if isinstance(message, Trace):
            self._feed.put(message)
            return
        if isinstance(message, Tokens) and message.tokens:
            self._health.heard(self._clock())
        if not self._recovery.received(message):
            return  # aborted a moment ago
        submission = self._submissions[message.id]
        if message.id not in self._recovery:
            del self._submissions[message.id]
            self._departures.left(self._clock())
            submission.finished(message.id)
        submission.put(EngineFailed(message.error) if isinstance(message, Failed) else message)

    def _on_status(self, status: Status) -> None:
        fingerprint = status.info.fingerprint
        difference = disagreement("this server", self._fingerprint, "the engine", fingerprint)
        if difference is not None:
            trouble = f"the engine does not belong to this server: {difference}"
            if trouble != self._trouble:
                log.error("%s", trouble)
            self._trouble = trouble
            return
        if not self._health.answered(status.number, self._clock()):
            return
        if self.figures.status is None:
            info = status.info
            layers = "+".join(map(str, info.split))
            log.info("engine ready: %d stages of %s layers, drafter %s", info.stages, layers, info.drafter)
            self._trouble = ""
            if self._known not in (None, fingerprint):
                self._give_up(list(self._recovery), "the engine has come back with other settings")
            self._known = fingerprint
            if self._feed.watched:
                self._send(Watch(snapshot=True))
            again = self._recovery.back()
            self.resumed += len(again)
            for request in again:
                log.info("%s goes on after %d tokens", request.id, len(request.generated))
                self._send(request)
        self.figures.update(status)

    def _give_up(self, sequences: Sequence[str], reason: str) -> None:
        """Ends sequences with an error; a hung engine that comes back must not go on with them."""
        for sequence in sequences:
            self._recovery.closed(sequence)
            self._send(Abort(sequence))
            submission = self._submissions.pop(sequence)
            submission.finished(sequence)
            submission.put(EngineUnavailable(reason))

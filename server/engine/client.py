"""The server's end of the request bus: one DEALER socket to rank 0, shared by every open request."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from server.engine.bus_reader import BusReader
from server.engine.health import EngineHealth
from server.engine.rates import EngineFigures
from workers.shared.bus import encode, open_socket
from workers.shared.errors import EchelonError
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


class EngineUnavailable(EchelonError):
    """The engine cannot be reached, has gone, or does not answer."""


class EngineFailed(EchelonError):
    """The engine has given up this request."""


class DeadlineExceeded(EchelonError):
    """The request has taken longer than this server allows."""


class QueueFull(EchelonError):
    """No more sequences may be opened now."""


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
    """Invariant: every open sequence either gets messages from the engine that was asked, or an error at once.

    The engine group may restart behind the same address, and a fresh engine knows nothing of old requests. So a lost
    connection fails every open request, and the socket is replaced, which drops whatever was not yet delivered.
    `capacity` bounds the open sequences: one that runs and those that wait.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        capacity: int,
        health_timeout: float,
        clock: Callable[[], float],
        probe_interval: float = _PROBE_INTERVAL,
    ) -> None:
        self._endpoint = endpoint
        self.capacity = capacity
        self._clock = clock
        self._probe_interval = probe_interval
        self._health = EngineHealth(health_timeout, probe_interval)
        self.figures = EngineFigures()
        self._submissions: dict[str, Submission] = {}
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[Any] | None = None
        self._reader: BusReader | None = None
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    # --- what routes use ------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Whether the engine has lately answered a probe that went through its loop and every stage."""
        return self._health.healthy(self._clock()) and not self._closing

    @property
    def info(self) -> EngineInfo:
        """What the engine serves; raises `EngineUnavailable` unless it is healthy."""
        if self.figures.status is None or not self.healthy:
            raise EngineUnavailable("the engine is starting, restarting or not answering; try again in a moment")
        return self.figures.status.info

    @property
    def open_sequences(self) -> int:
        """Sequences that run or wait."""
        return len(self._submissions)

    def submit(self, requests: Sequence[Generate]) -> Submission:
        """Opens all the sequences of one HTTP request, or none; raises `EngineUnavailable` or `QueueFull`."""
        _ = self.info
        if self.open_sequences + len(requests) > self.capacity:
            raise QueueFull(f"{self.open_sequences} of {self.capacity} sequences are open")
        submission = Submission(self, [request.id for request in requests])
        for request in requests:
            self._submissions[request.id] = submission
            self._send(request)
        return submission

    def abort(self, sequence: str) -> None:
        """Tells the engine to end a sequence, and forgets it."""
        if self._submissions.pop(sequence, None) is not None:
            self._send(Abort(sequence))

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to connect; returns before the engine answers."""
        self._task = asyncio.create_task(self._run())

    def shut(self, reason: str) -> None:
        """Ends every open request with an error and refuses new ones."""
        self._closing = True
        self._fail_all(reason)

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
            log.warning("engine lost: %s", reason)
            self._health.disconnected()
            self.figures = EngineFigures()
            self._fail_all(reason)

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

        socket = open_socket(self._context, zmq.DEALER, self._endpoint, bind=False)
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
            if not self._health.healthy(self._clock()):
                self._fail_all("the engine does not answer")
            if number is not None:
                self._send(Probe(number))
            await asyncio.sleep(self._probe_interval)

    # --- messages --------------------------------------------------------------------------------------------------

    def _send(self, message: ToEngine) -> None:
        if self._socket is not None and self._reader is not None:
            # Without a high-water mark the socket takes the message at once.
            self._socket.send(encode(message), zmq.DONTWAIT)
            self._reader.look()

    def _dispatch(self, message: FromEngine) -> None:
        if isinstance(message, Status):
            if self._health.answered(message.number, self._clock()):
                if self.figures.status is None:
                    log.info("engine ready: %s", message.info)
                self.figures.update(message)
            return
        if isinstance(message, KeepAlive):
            return
        if isinstance(message, Tokens) and message.tokens:
            self._health.heard(self._clock())
        submission = self._submissions.get(message.id)
        if submission is None:
            return  # aborted a moment ago
        if isinstance(message, Failed) or message.finish is not None:
            del self._submissions[message.id]
            submission.finished(message.id)
        submission.put(EngineFailed(message.error) if isinstance(message, Failed) else message)

    def _fail_all(self, reason: str) -> None:
        submissions, self._submissions = self._submissions, {}
        for sequence, submission in submissions.items():
            # If the connection stands, a hung engine that comes back must not go on with it.
            self._send(Abort(sequence))
            submission.finished(sequence)
            submission.put(EngineUnavailable(reason))

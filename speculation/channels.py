"""Rank 0's sockets: the request bus, one control channel a stage, and the results of all stages."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zmq

from speculation.drafters.base import DraftSource
from speculation.stage_lines import open_lines
from speculation.wakeup import Wakeup
from workers.shared.bus import FREE_AGAIN, Intake, encode, open_socket
from workers.shared.cascade.figures import ModelFigures
from workers.shared.config import Endpoints
from workers.shared.messages import Failed, FromEngine, FromStage, Sample, Shutdown, ToEngine, ToStage


class Channels:
    """Binds everything rank 0 listens on. What is in flight is bounded by credits, so no queue grows."""

    def __init__(self, context: "zmq.Context[Any]", endpoints: Endpoints, silence: float | None = None) -> None:
        """After `silence` seconds without a sign of life a connection counts as lost; None: only when it is closed."""
        self.announce_ns = 0  # spent in `announce`
        listen, token = endpoints.listen, endpoints.token
        self._bus = open_socket(
            context,
            zmq.ROUTER,
            endpoints.bus,
            bind=True,
            listen=listen,
            token=token,
            silence=silence,
            patience=FREE_AGAIN,
        )
        self._bus.setsockopt(zmq.ROUTER_MANDATORY, 1)  # what cannot be delivered is an error
        self._wakeup = Wakeup()
        self._bus_descriptor: int | None = None  # once requests are taken
        self._asked = True  # whether there may be something on the bus
        self._lines = open_lines(context, endpoints, silence, self._wakeup)
        self._sources: dict[int, DraftSource] = {}  # by descriptor
        self._stages = len(endpoints.control)
        self._vanished: set[bytes] = set()
        self._from_stages: Intake[FromStage] = Intake(FromStage, "results channel")
        self._from_clients: Intake[ToEngine] = Intake(ToEngine, "request bus")

    def attend(self, sources: Iterable[DraftSource]) -> None:
        """From now on `wait` ends for these sources of drafts, too, which are told to take in what has come."""
        for source in sources:
            self._sources[source.fileno()] = source
            self._wakeup.watch(source.fileno())

    def take_requests(self) -> None:
        """From now on `wait` ends for clients, too: before, whoever waits would wake up for what nobody reads."""
        self._bus_descriptor = self._wakeup.attend(self._bus)

    def figures(self) -> list[ModelFigures]:
        """Of all models that draft beside the engine."""
        return [figures for source in self._sources.values() for figures in source.figures()]

    def wait(self, seconds: float) -> None:
        """Sleeps until a message arrives or `seconds` have passed."""
        ready = self._wakeup.wait(seconds)
        self._asked = any(descriptor == self._bus_descriptor for descriptor, _ in ready)
        self._lines.noticed(ready)
        if self._sources:
            for descriptor, _ in ready:
                if (source := self._sources.get(descriptor)) is not None:
                    source.arrived()

    @property
    def dropped(self) -> int:
        """Messages that could not be read."""
        return self._from_stages.dropped.count + self._from_clients.dropped.count

    def result(self) -> FromStage | None:
        """The next message of a stage, if one has arrived."""
        while (data := self._lines.receive()) is not None:
            message = self._from_stages.read(data)
            if message is None:
                continue
            if isinstance(message, Sample) or message.stage < self._stages:
                return message
            self._from_stages.dropped.add(f"there is no stage {message.stage}")
        return None

    def departed(self) -> list[int]:
        """Stages that have closed their control channel, or died, since the last call."""
        return self._lines.departed()

    def request(self) -> tuple[bytes, ToEngine] | None:
        """The next message of a client with the client's address, if one has arrived."""
        while self._asked:
            try:
                client, *parts = self._bus.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self._asked = False
                break
            data = parts[0] if len(parts) == 1 else b""
            if (message := self._from_clients.read(data)) is not None:
                return client, message
            if (named := _read_id(data)) is not None:
                reason = self._from_clients.dropped.reason
                self.answer(client, Failed(named, f"the engine cannot read this request: {reason}"))
        return None

    def announce(self, messages: Sequence[ToStage]) -> None:
        """Sends messages to every stage, in order. Raises `PeerLost` where a stage is not connected."""
        started = time.perf_counter_ns()
        for message in messages:
            self._lines.announce(encode(message))
        self.announce_ns += time.perf_counter_ns() - started

    def dismiss(self) -> None:
        """Tells everybody who is still there to leave."""
        for source in self._sources.values():
            source.dismiss()
        self._lines.dismiss(encode(Shutdown()))

    def answer(self, client: bytes, message: FromEngine) -> None:
        """Sends a message to a client; see `vanished`."""
        try:
            self._bus.send_multipart((client, encode(message)))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._vanished.add(client)

    def vanished(self) -> set[bytes]:
        """Clients to which something could not be delivered since the last call: their connections are gone."""
        vanished = self._vanished
        if vanished:
            self._vanished = set()
        return vanished

    def close(self) -> None:
        """Closes all sockets, after the last control messages have left."""
        self._lines.close()
        self._bus.close()
        for source in self._sources.values():
            source.close()


class _Named(msgspec.Struct):
    id: str


def _read_id(data: bytes) -> str | None:
    """The id of a request that cannot be read otherwise, as of a client of another version."""
    try:
        return msgspec.msgpack.decode(data, type=_Named).id
    except (msgspec.MsgspecError, RecursionError):
        return None

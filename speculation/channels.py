"""Rank 0's sockets: the request bus, one control channel a stage, and the results of all stages."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from speculation.stage_lines import open_lines
from workers.shared.bus import encode, open_socket
from workers.shared.config import Endpoints
from workers.shared.messages import FromEngine, FromStage, Shutdown, ToEngine, ToStage


class Channels:
    """Binds everything rank 0 listens on. What is in flight is bounded by credits, so no queue grows."""

    def __init__(self, context: "zmq.Context[Any]", endpoints: Endpoints) -> None:
        self.announce_ns = 0  # spent in `announce`
        listen = endpoints.listen
        self._bus = open_socket(context, zmq.ROUTER, endpoints.bus, bind=True, listen=listen)
        self._lines = open_lines(context, endpoints)
        self._poller = zmq.Poller()
        self._poller.register(self._bus, zmq.POLLIN)
        self._lines.register(self._poller)
        self._from_stage = msgspec.msgpack.Decoder(FromStage)
        self._to_engine = msgspec.msgpack.Decoder(ToEngine)

    def wait(self, seconds: float) -> None:
        """Sleeps until a message arrives or `seconds` have passed."""
        self._lines.noticed(dict(self._poller.poll(int(seconds * 1000))))

    def result(self) -> FromStage | None:
        """The next message of a stage, if one has arrived."""
        message = self._lines.receive()
        return None if message is None else self._from_stage.decode(message)

    def departed(self) -> list[int]:
        """Stages that have closed their control channel, or died, since the last call."""
        return self._lines.departed()

    def request(self) -> tuple[bytes, ToEngine] | None:
        """The next message of a client with the client's address, if one has arrived."""
        try:
            client, message = self._bus.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return client, self._to_engine.decode(message)

    def announce(self, messages: Sequence[ToStage]) -> None:
        """Sends messages to every stage, in order. Raises `PeerLost` where a stage is not connected."""
        started = time.perf_counter_ns()
        for message in messages:
            self._lines.announce(encode(message))
        self.announce_ns += time.perf_counter_ns() - started

    def dismiss(self) -> None:
        """Tells every stage that is still there to leave."""
        self._lines.dismiss(encode(Shutdown()))

    def answer(self, client: bytes, message: FromEngine) -> None:
        """Sends a message to a client; one that has gone is forgotten by ZeroMQ."""
        self._bus.send_multipart((client, encode(message)))

    def close(self) -> None:
        """Closes all sockets, after the last control messages have left."""
        self._lines.close()
        self._bus.close()

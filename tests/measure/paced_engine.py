"""An engine in a process of its own that gives every request a token at fixed times, and writes down when it did."""

import heapq
import itertools
import json
import signal
import sys
import time
from pathlib import Path

import msgspec
import zmq

from tests.stub_engine import StubEngine
from workers.shared.bus import encode, open_socket
from workers.shared.fingerprint import server_fingerprint
from workers.shared.messages import (
    Abort,
    FromEngine,
    Generate,
    Probe,
    SpeculationCounts,
    ToEngine,
    Tokens,
)

_TOKEN = 80  # any ordinary one


def serve(endpoint: str, interval: float, log: Path, model: Path) -> None:
    """Until SIGTERM; `interval` in seconds. The log has, by request, when it came and when each token left (ns)."""
    figures = StubEngine(endpoint, lambda request: [], fingerprint=server_fingerprint(model))
    context = zmq.Context()
    socket = open_socket(context, zmq.ROUTER, endpoint, bind=True)
    decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
    due: list[tuple[float, int, bytes, Generate]] = []
    times: dict[str, list[int]] = {}
    order = itertools.count()
    leaving = False

    def leave(*_: object) -> None:
        nonlocal leaving
        leaving = True

    def send(peer: bytes, message: FromEngine) -> None:
        socket.send_multipart([peer, encode(message)])

    signal.signal(signal.SIGTERM, leave)
    while not leaving:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else 0.1
        if socket.poll(wait * 1000):
            peer, data = socket.recv_multipart()
            message = decoder.decode(data)
            if isinstance(message, Generate):
                times[message.id] = [time.monotonic_ns()]
                heapq.heappush(due, (time.monotonic() + interval, next(order), peer, message))
            elif isinstance(message, Probe):
                send(peer, figures.status(message.number, 0))
            else:
                assert isinstance(message, Abort)
        while due and due[0][0] <= time.monotonic():
            at, _, peer, request = heapq.heappop(due)
            sent = times[request.id]
            last = len(sent) == request.max_tokens
            finish, counts = ("length", SpeculationCounts()) if last else (None, None)
            sent.append(time.monotonic_ns())
            send(peer, Tokens(request.id, [_TOKEN], [], finish, counts))
            if not last:
                heapq.heappush(due, (at + interval, next(order), peer, request))
    log.write_text(json.dumps(times))
    socket.close(linger=0)
    context.term()


if __name__ == "__main__":
    serve(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))

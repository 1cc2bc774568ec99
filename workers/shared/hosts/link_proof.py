"""Proves that messages get through between hosts before anything is loaded: each link, within a time, by its name.

Both ends use the addresses, the token and the kind of connection that the engine will use.
"""

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import zmq

from workers.shared.bus import open_socket
from workers.shared.config import Endpoints
from workers.shared.endpoints import TCP
from workers.shared.errors import AddressInUse, ConfigError
from workers.shared.hosts.group_key import GroupContext
from workers.shared.hosts.messages import LinkReport

_SECONDS = 5.0  # for a link to be there
_ROUND_TRIPS = 10
_BULK = bytes(4 << 20)
_LOOK_MS = 100
_FREE_AGAIN = 5.0  # seconds to wait for an address; a host that waits says nothing else meanwhile


class Listening:
    """Answers at `addresses` until closed."""

    def __init__(self, endpoints: Endpoints, addresses: Sequence[str], patience: float = _FREE_AGAIN) -> None:
        """Raises `AddressInUse` for an address that is not free in `patience` seconds, else `ConfigError` naming it."""
        self._context = GroupContext(endpoints.token)
        self._sockets: list[zmq.Socket[Any]] = []
        self._closing = threading.Event()
        deadline = time.monotonic() + patience
        for address in addresses:
            self._sockets.append(self._listen(endpoints, address, deadline))
        self._thread = threading.Thread(target=self._answer, name="links", daemon=True)
        self._thread.start()

    def _listen(self, endpoints: Endpoints, address: str, deadline: float) -> "zmq.Socket[Any]":
        listen, token, patience = endpoints.listen, endpoints.token, deadline - time.monotonic()
        try:
            return open_socket(
                self._context, zmq.REP, address, bind=True, listen=listen, token=token, patience=patience
            )
        except zmq.ZMQError as error:
            self._end()
            kind = AddressInUse if error.errno == zmq.EADDRINUSE else ConfigError
            raise kind(f"cannot listen at {address}: {error.strerror}") from error

    def close(self) -> None:
        """Returns once the addresses are free again."""
        self._closing.set()
        self._thread.join()
        self._end()

    def _end(self) -> None:
        for opened in self._sockets:
            opened.close(linger=0)
        self._context.term()

    def _answer(self) -> None:
        poller = zmq.Poller()
        for opened in self._sockets:
            poller.register(opened, zmq.POLLIN)
        while not self._closing.is_set():
            for opened, _ in poller.poll(_LOOK_MS):
                opened.recv()
                opened.send(b"")


def listening_addresses(endpoints: Endpoints, stages: Sequence[int]) -> list[str]:
    """Where a host listens for its `stages`; the first stage has nobody before it."""
    return [endpoints.data[stage] for stage in stages if stage > 0]


def links_of(endpoints: Endpoints, stages: Sequence[int]) -> list[tuple[str, str]]:
    """Name and address of every link that begins at a host with `stages`."""
    links = []
    for stage in stages:
        links.append((f"stage {stage} to rank 0, for control", endpoints.control[stage]))
        links.append((f"stage {stage} to rank 0, for results", endpoints.results))
        if stage + 1 < len(endpoints.data):
            links.append((f"stage {stage} to stage {stage + 1}", endpoints.data[stage + 1]))
    return links


def prove(endpoints: Endpoints, links: Sequence[tuple[str, str]], seconds: float = _SECONDS) -> tuple[LinkReport, ...]:
    """Tries all links at once; each has `seconds`."""
    context = GroupContext(endpoints.token)
    try:
        with ThreadPoolExecutor(max_workers=max(1, len(links))) as pool:
            return tuple(pool.map(lambda link: _prove(context, endpoints.token, link[0], link[1], seconds), links))
    finally:
        context.term()


def _prove(context: GroupContext, token: str, link: str, address: str, seconds: float) -> LinkReport:
    report = LinkReport(link, address)
    with open_socket(context, zmq.REQ, address, bind=False, token=token) as opened:
        deadline = time.monotonic() + seconds

        def there_and_back(message: bytes) -> float | None:
            started = time.perf_counter()
            opened.send(message)
            if not opened.poll(max(0, int(1000 * (deadline - time.monotonic())))):
                return None
            opened.recv()
            return time.perf_counter() - started

        if there_and_back(b"") is None:
            return msgspec.structs.replace(report, problem=_why(address))
        times = [there_and_back(b"") for _ in range(_ROUND_TRIPS)]
        bulk = there_and_back(_BULK) if None not in times else None
        if bulk is None:
            return msgspec.structs.replace(report, problem=f"answers, but not within {seconds:g} s every time")
        least = min(taken for taken in times if taken is not None)
        return msgspec.structs.replace(report, round_trip=least, bytes_per_second=len(_BULK) / bulk)


def _why(address: str) -> str:
    """The usual cause of nothing getting through."""
    host, _, port = address.removeprefix(TCP).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except socket.gaierror:
        return f"the name {host} is unknown here: give that host a --address that this one can reach"
    except TimeoutError:
        return f"no answer at all: usually a firewall on {host} that drops what comes to port {port}, or no route to it"
    except ConnectionRefusedError:
        return f"refused: nothing listens there, so {host} is perhaps another machine than the one meant (--address)"
    except OSError as error:
        return f"{error.strerror}: usually the wrong network (--address)"
    return f"connects, but nobody answers: usually something else listens at port {port}, or a proxy is in between"

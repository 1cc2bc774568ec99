"""The least a pipeline can cost: processes over same-host socket pairs that pass 2 KiB on and sleep, and nothing else.

No engine, no server, no client; every draft is right. The yardstick for hollow stages of the same hour.
"""

import multiprocessing
import os
import socket
import time
from typing import NamedTuple

from speculation.bench.cycle_cost.processor_time import process_seconds
from workers.shared.time_slices import be_punctual

_PAYLOAD = bytes(2048)
_WARM_UP = 50  # tokens
_JOIN_SECONDS = 60.0


class Bare(NamedTuple):
    """What was measured."""

    tokens_per_second: float
    cpu_ms: float  # a stage and token


def measure(stages: int, stage_ms: float, in_flight: int, tokens: int) -> Bare:
    """With `in_flight` tokens on their way at any time."""
    links = [_pair() for _ in range(stages + 1)]
    spent: multiprocessing.Queue[float] = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=_stage, args=(links[i][1], links[i + 1][0], stage_ms / 1000, spent), daemon=True)
        for i in range(stages)
    ]
    for process in processes:
        process.start()
    be_punctual()
    first, last = links[0][0], links[-1][1]
    for _ in range(in_flight):
        first.send(_PAYLOAD)
    started = 0.0
    for token in range(_WARM_UP + tokens):
        if token == _WARM_UP:
            started = time.perf_counter()
        last.recv(len(_PAYLOAD))
        first.send(_PAYLOAD)
    elapsed = time.perf_counter() - started
    first.send(b"e")
    cpu = sum(spent.get(timeout=_JOIN_SECONDS) for _ in processes)
    for process in processes:
        process.join(_JOIN_SECONDS)
    for link in links:
        for end in link:
            end.close()
    return Bare(tokens / elapsed, 1000 * cpu / stages / (_WARM_UP + tokens))


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _stage(
    inbound: socket.socket, outbound: socket.socket, seconds: float, spent: "multiprocessing.Queue[float]"
) -> None:
    be_punctual()
    buffer = bytearray(len(_PAYLOAD) + 1)
    while inbound.recv_into(buffer) > 1:
        started = time.perf_counter()
        left = seconds - (time.perf_counter() - started)
        time.sleep(max(0.0, left))
        outbound.send(_PAYLOAD)
    outbound.send(b"e")
    spent.put(process_seconds(os.getpid()) or 0.0)

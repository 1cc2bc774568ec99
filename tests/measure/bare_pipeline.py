"""The least a pipeline can cost: `python -m tests.measure.bare_pipeline [--stages 8] [--stage-ms 5,2,1] [--delta 0,1]`.

Processes over same-host socket pairs that pass 2 KiB on and sleep, and nothing else: no engine, no server, no client.
Every draft is right. The yardstick for `python -m speculation.bench.cycle_cost --hollow` of the same hour.
"""

import argparse
import multiprocessing
import resource
import socket
import sys
import time

from workers.shared.time_slices import be_punctual

_PAYLOAD = bytes(2048)
_WARM_UP = 50  # tokens


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
    usage = resource.getrusage(resource.RUSAGE_SELF)
    spent.put(usage.ru_utime + usage.ru_stime)


def measure(stages: int, stage_ms: float, delta: int, tokens: int) -> tuple[float, float]:
    """Tokens a second, and milliseconds of CPU a stage and token."""
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
    for _ in range(stages + delta):
        first.send(_PAYLOAD)
    started = 0.0
    for token in range(_WARM_UP + tokens):
        if token == _WARM_UP:
            started = time.perf_counter()
        last.recv(len(_PAYLOAD))
        first.send(_PAYLOAD)
    elapsed = time.perf_counter() - started
    first.send(b"e")
    cpu = sum(spent.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    return tokens / elapsed, 1000 * cpu / stages / (_WARM_UP + tokens)


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.bare_pipeline", description=__doc__)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--stage-ms", type=_numbers, default=[5.0, 2.0, 1.0])
    parser.add_argument("--delta", type=_numbers, default=[0, 1])
    parser.add_argument("--tokens", type=int, default=1000)
    options = parser.parse_args()
    sys.stdout.write(
        "| stage ms | δ | tok/s | share of ideal | CPU ms a stage and token |\n| --- | --- | --- | --- | --- |\n"
    )
    for stage_ms in options.stage_ms:
        for delta in options.delta:
            rate, cpu = measure(options.stages, stage_ms, int(delta), options.tokens)
            sys.stdout.write(f"| {stage_ms:g} | {delta:g} | {rate:.1f} | {rate * stage_ms / 10:.1f} % | {cpu:.3f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

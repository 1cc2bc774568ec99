"""What looking costs: `python -m tests.measure.trace_cost`, with options of `echelon serve` behind `--`.

Starts a server and asks for answers, in turn without anybody and with a reader of /dashboard/events. Prints the CPU
milliseconds that each process spent on a token, the least of the rounds, and how many tokens a second there were.
"""

import argparse
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

from tests.e2e.serving import Serving, serving
from tests.processes import children, command

_SETTLE = 4.0  # seconds after which nothing is traced any more
_HOLLOW = ["--stages", "4", "--hollow-stages", "--emulate-stage-ms", "5", "--drafter", "scripted"]
_HOLLOW += ["--scripted-acceptance", "0.8", "--always-draft"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.trace_cost")
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("serve", nargs="*", help="MODEL and options of `echelon serve`", default=["tiny", *_HOLLOW])
    arguments = parser.parse_args()
    model, *options = arguments.serve
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder, serving(Path(folder), model, *options) as server:
        _answer(server, arguments.tokens)
        for _ in range(arguments.rounds):
            for watched in (False, True):
                with _watching(server) if watched else contextlib.nullcontext():
                    for name, value in _round(server, arguments.tokens).items():
                        found[name, watched].append(value)
                if watched:
                    time.sleep(_SETTLE)
    print("| | nobody looks | somebody looks |\n| --- | --- | --- |")
    for name in sorted({name for name, _ in found}):
        best = max if name.startswith("tokens") else min
        print(f"| {name} | {best(found[name, False]):.3f} | {best(found[name, True]):.3f} |")


def _round(server: Serving, tokens: int) -> dict[str, float]:
    before, started = _cpu(server), time.monotonic()
    _answer(server, tokens)
    seconds, after = time.monotonic() - started, _cpu(server)
    spent = {f"{name}, ms CPU a token": 1000 * (after[name] - before[name]) / tokens for name in after}
    return spent | {"tokens a second": tokens / seconds}


def _cpu(server: Serving) -> dict[str, float]:
    """CPU seconds of every process so far, by name."""
    spent = {}
    for pid in children(server.launcher.pid):
        words = command(pid)
        times = psutil.Process(pid).cpu_times()
        stage = f"stage {words[words.index('--stage') + 1]}" if "--stage" in words else ""
        spent[stage or ("rank 0" if "speculation" in words else "API server")] = times.user + times.system
    return spent


def _answer(server: Serving, tokens: int) -> None:
    model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": "a b c a b c", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=300) as response:
        for _ in response.iter_lines():
            pass


@contextlib.contextmanager
def _watching(server: Serving) -> Iterator[None]:
    """Somebody reads the trace, in a thread of this process."""
    seen, stop = threading.Event(), threading.Event()

    def read() -> None:
        with httpx.stream("GET", f"{server.url}/dashboard/events", timeout=300) as response:
            for _ in response.iter_lines():
                seen.set()
                if stop.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    seen.wait(60)
    yield
    stop.set()
    reader.join(60)


if __name__ == "__main__":
    main()

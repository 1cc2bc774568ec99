"""Streams side by side: `python -m tests.measure.concurrency`, with options of `echelon serve` behind `--`.

Starts a server, opens 1, 2, 4... streams at once, and prints the sum of tokens per second, what the slowest stream had
of the mean, and the time between two tokens of a stream. With emulated stages the times are those of a rehearsal.
"""

import argparse
import subprocess
import sys
import threading
import time
import urllib.request

from speculation.bench.analysis.cells import Answer
from speculation.bench.streaming import stream_chat

_PORT = 8790
_READY_SECONDS = 300.0


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.concurrency")
    parser.add_argument("--streams", default="1,2,4,8", help="streams at once")
    parser.add_argument("--tokens", type=int, default=120, help="of each answer")
    parser.add_argument("serve", nargs="*", help="options of `echelon serve`")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.streams.split(",")]
    command = [sys.executable, "-m", "server.cli", "serve", *arguments.serve, "--port", str(_PORT)]
    with subprocess.Popen(
        [*command, "--max-num-seqs", str(max(counts)), "--served-model-name", "bench"], stderr=subprocess.DEVNULL
    ) as server:
        try:
            _await_ready(server)
            _crowd(1, 20)  # the first answer of a server is slower
            print(
                "| streams | tok/s in sum | slowest / mean | between tokens, p50 / p99 ms |\n| --- | --- | --- | --- |"
            )
            for count in counts:
                print(_row(count, _crowd(count, arguments.tokens)), flush=True)
        finally:
            server.terminate()
            server.wait(timeout=60)


def _await_ready(server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/health", timeout=5):
                return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit("the server did not start")
            time.sleep(0.2)


def _crowd(count: int, tokens: int) -> list[Answer]:
    """So many answers, asked for at once."""
    answers: list[Answer] = []

    def ask(number: int) -> None:
        body = {
            "model": "bench",
            "messages": [{"role": "user", "content": f"{number}: tell me about rivers and bridges"}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        answers.append(stream_chat(_PORT, str(number), body))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _row(count: int, answers: list[Answer]) -> str:
    if len(answers) < count:
        sys.exit("a stream has failed")
    rates = [1e6 * (len(a.times_us) - 1) / (a.times_us[-1] - a.times_us[0]) for a in answers]
    begin, end = min(a.times_us[0] for a in answers), max(a.times_us[-1] for a in answers)
    total = 1e6 * sum(len(a.times_us) - 1 for a in answers) / (end - begin)
    between = sorted(
        (later - earlier) / 1000
        for answer in answers
        for earlier, later in zip(answer.times_us, answer.times_us[1:], strict=False)
    )
    p50, p99 = (between[int(share * (len(between) - 1))] for share in (0.5, 0.99))
    return f"| {count} | {total:.1f} | {min(rates) * count / sum(rates):.2f} | {p50:.1f} / {p99:.1f} |"


if __name__ == "__main__":
    main()

"""Long prompts: `python -m tests.measure.long_context`, with options of `echelon serve` behind `--`.

Serves the tiny model, told that it has room for long sequences, and prints for each prompt length the time to the first
token, the prompt's tokens per second, the time of a token behind it, the most memory that the largest stage and the
largest other process have held, and a digest of the answer, by which runs can be compared. With emulated stages the
times are those of a rehearsal.
"""

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.client import HTTPConnection
from pathlib import Path

import psutil

from tests.measure.pruned_model import write_pruned_model
from workers.prepare.prepare import TINY, prepare
from workers.prepare.tiny_model import LAYERS

_PORT = 8793
_READY_SECONDS = 300.0
_ANSWER_SECONDS = 3600.0
_MORE = 512  # positions beyond the longest prompt
_IDS = range(30, 500)  # ordinary tokens of the tiny model
_NEW = 24


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.long_context")
    parser.add_argument("--lengths", default="1024,8192,32768", help="tokens of the prompts")
    parser.add_argument("--layers", type=int, default=LAYERS, help="layers of the model: the first of the tiny one's")
    parser.add_argument("serve", nargs="*", help="options of `echelon serve`")
    arguments = parser.parse_args()
    lengths = [int(length) for length in arguments.lengths.split(",")]
    capacity = max(lengths) + _MORE
    with tempfile.TemporaryDirectory() as place:
        model = _stretched(Path(place), capacity, arguments.layers)
        command = [sys.executable, "-m", "server.cli", "serve", str(model), *arguments.serve, "--port", str(_PORT)]
        command += ["--max-model-len", str(capacity), "--max-num-seqs", "1", "--served-model-name", "bench"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
            try:
                _await_ready(server)
                _ask(64)
                print(
                    "| prompt | first token, s | prompt tokens/s | later token, ms | stage, MiB | other, MiB | answer |"
                )
                print("| --- | --- | --- | --- | --- | --- | --- |")
                for length in lengths:
                    first, later, digest = _ask(length)
                    stage, other = (max(held) >> 20 for held in _memory(server.pid))
                    times = f"{first:.2f} | {length / first:.0f} | {1000 * later:.1f}"
                    print(f"| {length} | {times} | {stage} | {other} | {digest} |", flush=True)
            finally:
                server.terminate()
                server.wait(timeout=60)


def _stretched(place: Path, positions: int, layers: int) -> Path:
    """The tiny model with room for so many positions: its weights are random, whatever the position."""
    model = place / "tiny-long"
    write_pruned_model(prepare(TINY), model, range(layers, LAYERS))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    return model


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


def _ask(length: int) -> tuple[float, float, str]:
    """Seconds to the first token of an answer to a random prompt, and between two tokens behind it; and a digest."""
    chosen = random.Random(length)
    body = {
        "model": "bench",
        "prompt": [chosen.choice(_IDS) for _ in range(length)],
        "max_tokens": _NEW,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    connection = HTTPConnection("127.0.0.1", _PORT, timeout=_ANSWER_SECONDS)
    times, text = [], hashlib.sha256()
    try:
        sent = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(response.read().decode(errors="replace"))
        while line := response.readline():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter() - sent)
                text.update(json.loads(line.removeprefix(b"data: "))["choices"][0]["text"].encode())
    finally:
        connection.close()
    return times[0], (times[-1] - times[0]) / (_NEW - 1), text.hexdigest()[:8]


def _memory(server: int) -> tuple[list[int], list[int]]:
    """The most resident bytes of each stage below the process `server` so far, and those of it and all others."""
    top = psutil.Process(server)
    stages, others = [], []
    for process in (top, *top.children(recursive=True)):
        (stages if "--stage" in process.cmdline() else others).append(_most_resident(process.pid))
    return stages, others


def _most_resident(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


if __name__ == "__main__":
    main()

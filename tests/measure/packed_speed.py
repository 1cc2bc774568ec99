"""`python -m tests.measure.packed_speed`: speed and memory of one model served with its weights held in several ways.

Real servers, one after the other, without a drafter: the model's own file, and its weights unpacked to float32 as they
are, in eight bits and in four; or with `--model` any other one as it is. On a machine that does nothing else; prints a
table.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from tests.e2e.serving import Serving, serving
from tests.measure.packed_accuracy import write_unpacked
from tests.processes import children, command
from workers.prepare.prepare import prepare

_SHORT = (
    "Explain how a bicycle stays upright.",
    "The history of the printing press begins",
    "A farmer has 12 cows and",
)
_LONG = "The quick brown fox jumps over the lazy dog, and nobody asks the dog. " * 60


def main() -> None:
    """Serves and asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--threads", type=int, default=1, help="of a stage")
    parser.add_argument("--model", help="to be served as it is, in place of the default one in four ways")
    given = parser.parse_args()
    common = ("--stages", str(given.stages), "--max-model-len", "2048", "--served-model-name", "measured")
    common = (*common, "--threads", str(given.threads), "--max-num-seqs", "1")
    print("| weights | tokens/s | first token | of a long prompt | stages hold |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: list[tuple[str, str, tuple[str, ...]]] = [("as the file packs them", given.model, ())]
        if given.model is None:
            plain = str(write_unpacked(prepare("default"), folder / "plain", None))
            rows = [
                ("Q4_1, head Q8_0 (the default)", "default", ()),
                ("float32", plain, ()),
                ("int8", plain, ("--quantization", "int8")),
                ("int4", plain, ("--quantization", "int4")),
            ]
        for label, model, options in rows:
            with serving(folder, model, *common, "--drafter", "none", *options) as server:
                print(f"| {label} | {_measured(server, given.tokens)} |", flush=True)


def _measured(server: Serving, tokens: int) -> str:
    _answer(server, _SHORT[0], 8)  # what is slow once
    answers = [_answer(server, prompt, tokens) for prompt in _SHORT]
    rate = statistics.median((tokens - 1) / seconds for _, seconds in answers)
    first = statistics.median(first for first, _ in answers)
    long = min(_answer(server, f"{number}. {_LONG}", 2)[0] for number in range(2))
    return f"{rate:.1f} | {first * 1e3:.0f} ms | {long:.2f} s | {_held(server) >> 20} MiB"


def _answer(server: Serving, prompt: str, tokens: int) -> tuple[float, float]:
    """Seconds to the first token, and from there to the last."""
    body = {"model": "measured", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    started, times = time.perf_counter(), []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=600) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                times.append(time.perf_counter())
    return times[0] - started, times[-1] - times[0]


def _held(server: Serving) -> int:
    """Memory of all stages that belongs to no file."""
    stages = [pid for pid in children(server.launcher.pid) if "--stage" in command(pid)]
    lines = [line for pid in stages for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()

"""`python -m tests.measure.always_wrong`: what a drafter costs that is wrong every time, from the first answer on.

Two real servers, one without a drafter and one whose script is the other's answers with every token changed, answer the
same prompts in turn. On a machine that does nothing else; prints a line an answer, and the ratio over all with its
standard error, which says how many repeats a difference of some percent takes.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import msgspec

from speculation.drafters.scripted import Recording, Script
from tests.e2e.serving import Serving, serving

PROMPTS = (
    "Explain how a bicycle stays upright.",
    "Write a short story about a lighthouse keeper.",
    "def fibonacci(n):\n    ",
    "The history of the printing press begins",
    "List five uses of a paper clip.",
    "A farmer has 12 cows and buys 7 more. How many",
    "The best way to learn a language is",
    "Dear Sir or Madam,",
)


def main() -> None:
    """Records, replays, compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1, help="of every answer, in the other order each time")
    given, options = parser.parse_known_args()  # the rest is for both servers
    common = (
        given.model,
        "--stages",
        str(given.stages),
        "--max-model-len",
        "1024",
        "--served-model-name",
        "measured",
        *options,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(_made(folder / "plain"), *common, "--drafter", "none") as plain:
            recordings = [_record(plain, prompt, given.tokens) for prompt in PROMPTS]
            script = folder / "script.json"
            script.write_bytes(msgspec.json.encode(Script(recordings)))
            wrong = (*common, "--drafter", "scripted", "--script", str(script))
            with serving(_made(folder / "wrong"), *wrong) as drafting:
                _compare(plain, drafting, given.tokens, given.repeats)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _record(server: Serving, prompt: str, tokens: int) -> Recording:
    body = {**_body(prompt, tokens), "return_token_ids": True}
    choice = httpx.post(f"{server.url}/v1/completions", json=body, timeout=600).raise_for_status().json()["choices"][0]
    return Recording(choice["prompt_token_ids"] + choice["token_ids"], wrong_probability=1.0)


def _compare(plain: Serving, drafting: Serving, tokens: int, repeats: int) -> None:
    totals = {"none": 0.0, "wrong": 0.0}
    logs = []
    for number, prompt in enumerate(PROMPTS * repeats):
        turn = (number + number // len(PROMPTS)) % 2  # each prompt in both orders
        order = [("none", plain), ("wrong", drafting)][:: 1 if turn else -1]
        seconds = {name: answer_seconds(server, prompt, tokens) for name, server in order}
        for name, value in seconds.items():
            totals[name] += value
        logs.append(math.log(seconds["none"] / seconds["wrong"]))
        print(f"answer {number}: {seconds['none'] / seconds['wrong']:.3f} of none", flush=True)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    print(f"all: {totals['none'] / totals['wrong']:.3f} of none, by time; mean {math.exp(statistics.fmean(logs)):.3f}")
    print(f"standard error of the mean: {error:.3f}")


def answer_seconds(server: Serving, prompt: str, tokens: int) -> float:
    """From the first token of an answer to its last."""
    times = []
    body = {**_body(prompt, tokens), "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=600) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                times.append(time.perf_counter())
    return times[-1] - times[0]


def _body(prompt: str, tokens: int) -> dict[str, object]:
    return {"model": "measured", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


if __name__ == "__main__":
    main()

"""`python -m tests.measure.open_loop URL MODEL`: requests that come when they come, whether the server keeps up or not.

Arrivals are a Poisson process; each is one streamed completion by the official client, without retries. Past what the
server can do its queue fills, and it refuses with 429; nothing else may go wrong.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import openai


@dataclass
class Outcome:
    """What became of all requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    texts: dict[int, str] = field(default_factory=dict)  # of those that were answered to the end, by number
    cut_short: list[str] = field(default_factory=list)  # streams that broke off, and why
    retry_after: list[int] = field(default_factory=list)  # seconds, of those refused
    first_token: list[float] = field(default_factory=list)  # seconds


def prompt(number: int) -> list[int]:
    """Of request `number`: one of a few, so that answers can be compared."""
    return [40 + number % 5, 41, 42]


async def open_loop(url: str, model: str, *, rate: float, requests: int, tokens: int, seed: int = 0) -> Outcome:
    """Sends `requests` requests for so many tokens, `rate` a second on average, and waits for all of them."""
    outcome, rng = Outcome(), random.Random(seed)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:

        async def ask(number: int) -> None:
            began = time.perf_counter()
            try:
                stream = await client.completions.create(
                    model=model,
                    prompt=prompt(number),
                    max_tokens=tokens,
                    temperature=0,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
            except openai.APIStatusError as error:
                outcome.statuses[error.status_code] += 1
                outcome.retry_after.append(int(error.response.headers.get("retry-after", 0)))
                return
            outcome.statuses[200] += 1
            text, finish = "", None
            try:
                async for chunk in stream:
                    if not text:
                        outcome.first_token.append(time.perf_counter() - began)
                    text += chunk.choices[0].text
                    finish = chunk.choices[0].finish_reason or finish
            except openai.OpenAIError as error:
                outcome.cut_short.append(f"{number}: {error}")
                return
            if finish == "length":
                outcome.texts[number] = text
            else:
                outcome.cut_short.append(f"{number}: finish_reason is {finish}")

        async with asyncio.TaskGroup() as group:
            for number in range(requests):
                group.create_task(ask(number))
                await asyncio.sleep(rng.expovariate(rate))
    return outcome


def main() -> None:
    """Prints what became of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.open_loop")
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("model")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second, on average")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=50, help="of each answer")
    given = parser.parse_args()
    began = time.perf_counter()
    outcome = asyncio.run(
        open_loop(given.url, given.model, rate=given.rate, requests=given.requests, tokens=given.tokens)
    )
    seconds = time.perf_counter() - began
    first = sorted(outcome.first_token) or [0.0]
    p50, p99 = (first[int(share * (len(first) - 1))] for share in (0.5, 0.99))
    whole = len(outcome.texts)
    print(f"statuses {dict(outcome.statuses)}, answered whole {whole}, cut short {len(outcome.cut_short)}")
    print(f"{whole * given.tokens / seconds:.1f} tok/s; first token p50 {p50:.2f} s, p99 {p99:.2f} s")
    if outcome.retry_after:
        print(f"Retry-After from {min(outcome.retry_after)} to {max(outcome.retry_after)} s")


if __name__ == "__main__":
    main()

"""Streams over HTTP, with the time at which each token arrived."""

import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

from speculation.bench.analysis.cells import Answer
from speculation.bench.configuration import BenchSettings
from speculation.bench.prompts import Prompt
from workers.shared.errors import ConfigError

_TIMEOUT = 600.0  # seconds without a byte


def chat_body(prompt: Prompt, settings: BenchSettings, *, max_tokens: int, temperature: float) -> dict[str, Any]:
    """The request that every served contender gets."""
    return {
        "model": "bench",
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        "ignore_eos": settings.ignore_eos,
        "seed": prompt.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def stream_lines(port: int, path: str, question: str, body: dict[str, Any]) -> Iterator[tuple[bytes, int]]:
    """Posts `body` to the server on this machine's `port`; each line of its answer, and microseconds since it was sent.

    Raises `ConfigError` with the server's words where it refuses.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        sent = time.perf_counter_ns()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ConfigError(f"prompt {question}: {response.read().decode(errors='replace')}")
        while line := response.readline():
            yield line, (time.perf_counter_ns() - sent) // 1000
    finally:
        connection.close()


def stream_chat(port: int, question: str, body: dict[str, Any]) -> Answer:
    """Sends `body` to `echelon serve` on this machine's `port` and collects the stream.

    Raises `ConfigError` with the server's words where it refuses or fails.
    """
    collected = Collected(question)
    for line, time_us in stream_lines(port, "/v1/chat/completions", question, body):
        collected.line(line, time_us)
    return collected.answer()


class Collected:
    """Puts an answer together from the lines of a stream."""

    def __init__(self, question: str) -> None:
        self._question = question
        self._prompt_ids: list[int] = []
        self._tokens: list[int] = []
        self._times_us: list[int] = []
        self._completion_tokens: int | None = None
        self._cached = 0
        self._done = False

    def line(self, line: bytes, time_us: int) -> None:
        """The next line, and when it arrived; raises `ConfigError` where it tells of an error."""
        if not line.startswith(b"data: "):
            return
        data = line[6:].strip()
        if data == b"[DONE]":
            self._done = True
            return
        event = json.loads(data)
        if "error" in event:
            raise ConfigError(f"prompt {self._question}: {event['error']['message']}")
        self._prompt_ids = event.get("prompt_token_ids") or self._prompt_ids
        for choice in event["choices"]:
            ids = choice.get("token_ids") or []
            self._tokens += ids
            self._times_us += [time_us] * len(ids)
        if usage := event.get("usage"):
            self._completion_tokens = usage["completion_tokens"]
            self._cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def answer(self) -> Answer:
        """The whole answer; raises `ConfigError` where the stream was cut or its count is wrong."""
        if not self._done or not self._tokens:
            raise ConfigError(f"prompt {self._question}: the stream ended early")
        if self._completion_tokens != len(self._tokens):
            raise ConfigError(
                f"prompt {self._question}: {len(self._tokens)} tokens came, but usage says {self._completion_tokens}"
            )
        return Answer(self._question, self._prompt_ids, self._tokens, self._times_us, self._cached)

"""A group of `echelon serve`."""

import json
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import msgspec

from speculation.bench.analysis.cells import Answer
from speculation.bench.configuration import BenchSettings, Contender, serve_arguments
from speculation.bench.contenders.running import together
from speculation.bench.contenders.spawned import LOOK_SECONDS, Spawned
from speculation.bench.contenders.streaming import chat_body, stream_chat
from speculation.bench.near_ties import Branch, bias
from speculation.bench.prompts import Prompt
from workers.shared.errors import ConfigError
from workers.shared.messages import Status
from workers.shared.processes.free_port import free_port

_ANSWER_SECONDS = 600.0
_FRESH_SECONDS = 60.0  # figures follow within two or three seconds


class Served:
    """A group of `echelon serve` on a port of its own."""

    def __init__(self, contender: Contender, settings: BenchSettings, checkpoint: str | None, log: Path) -> None:
        self._settings = settings
        self._port = free_port()
        arguments = ["-m", "server.cli", "serve", *serve_arguments(contender, settings, checkpoint)]
        self._launcher = Spawned.python([*arguments, "--port", str(self._port)], log)

    @property
    def pid(self) -> int:
        """Of the launcher, whose children the others are."""
        return self._launcher.pid

    def wait_until_ready(self) -> None:
        """Waits for /health, and for the first figures."""

        def look() -> None:
            self._get("/health")
            self._look()  # the figures come a moment later

        self._launcher.await_ready("`echelon serve`", look)

    def answer(self, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
        """Answers one prompt over HTTP."""
        body = chat_body(prompt, self._settings, max_tokens=max_tokens, temperature=temperature)
        try:
            return stream_chat(self._port, prompt.question, body)
        except OSError as error:
            raise ConfigError(f"prompt {prompt.question}: {error}\n{self._launcher.tail()}") from error

    def answers(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> list[Answer]:
        """Answers several prompts over as many connections."""
        return together(lambda prompt: self.answer(prompt, temperature, max_tokens), prompts)

    def prefers(self, branch: Branch, prompt: Prompt, temperature: float) -> bool:
        """Asks for one token, by token ids."""
        body = {
            "model": "bench",
            "prompt": branch.context,
            "max_tokens": 1,
            "temperature": temperature,
            "top_k": self._settings.top_k,
            "top_p": self._settings.top_p,
            "ignore_eos": self._settings.ignore_eos,
            "seed": prompt.seed,
            "logit_bias": {str(branch.expected): bias(self._settings)},
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            self._url("/v1/completions"), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:
                choice = json.load(response)["choices"][0]
        except OSError as error:
            raise ConfigError(f"prompt {prompt.question}: {error}\n{self._launcher.tail()}") from error
        return bool(choice["token_ids"] == [branch.expected])

    def snapshot(self) -> Status:
        """Figures newer than the last answer.

        They come with pings, of which one may have been under way: the second change is new for certain.
        """
        deadline = time.monotonic() + _FRESH_SECONDS
        last = self._look()
        changes = 0
        while changes < 2 or last.running or last.waiting:
            if time.monotonic() > deadline:
                raise ConfigError(f"the engine's figures do not change any more\n{self._launcher.tail()}")
            time.sleep(LOOK_SECONDS)
            look = self._look()
            changes += look.number != last.number
            last = look
        return last

    def stop(self) -> None:
        """Stops the launcher, which takes its group down."""
        self._launcher.stop()

    def _look(self) -> Status:
        return msgspec.json.decode(self._get("/status"), type=Status)

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._url(path), timeout=30) as response:
            content: bytes = response.read()
            return content

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

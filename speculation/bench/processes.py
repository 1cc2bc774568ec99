"""The processes that are measured: `echelon serve` groups, and Hugging Face beside them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import msgspec

from speculation.bench.analysis.cells import Answer
from speculation.bench.configuration import HUGGING_FACE, BenchSettings, Contender, serve_arguments
from speculation.bench.near_ties import Branch, bias
from speculation.bench.prompts import Prompt
from speculation.bench.streaming import chat_body, stream_chat
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import PARENT_VARIABLE
from workers.shared.messages import Status
from workers.shared.options.sources import without_options
from workers.shared.processes.free_port import free_port

_READY_SECONDS = 600.0
_GRACE_SECONDS = 15.0
_LOOK_SECONDS = 0.1
_FRESH_SECONDS = 60.0  # figures follow within two or three seconds


class Running(Protocol):
    """A contender whose processes have been started."""

    def wait_until_ready(self) -> None:
        """Returns once it can answer; raises `ConfigError` with the end of its log where it never will."""

    def answer(self, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
        """Answers one prompt; raises `ConfigError`."""

    def answers(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> list[Answer]:
        """Answers several prompts that are asked at one moment; raises `ConfigError`."""

    def prefers(self, branch: Branch, prompt: Prompt, temperature: float) -> bool:
        """Whether the branch's expected token comes next once it is favoured by a little; raises `ConfigError`."""

    def snapshot(self) -> Status | None:
        """Figures that cover everything up to now, or None where there are none."""

    def stop(self) -> None:
        """Takes its processes down."""


def start(contender: Contender, settings: BenchSettings, checkpoint: str | None, logs: Path) -> Running:
    """Starts a contender's processes; `checkpoint` is as in `serve_arguments`.

    Only to be called by the main thread: processes that die with their parent die with the thread that started them.
    """
    name = f"{contender.method}-n{contender.stages}.log"
    if contender.method == HUGGING_FACE:
        return HuggingFace(settings, logs / name)
    return Served(contender, settings, checkpoint, logs / name)


class Served:
    """A group of `echelon serve` on a port of its own."""

    def __init__(self, contender: Contender, settings: BenchSettings, checkpoint: str | None, log: Path) -> None:
        self._settings = settings
        self._log = log
        self._port = free_port()
        arguments = ["-m", "server.cli", "serve", *serve_arguments(contender, settings, checkpoint)]
        self._launcher = _spawn([*arguments, "--port", str(self._port)], log)

    @property
    def pid(self) -> int:
        """Of the launcher, whose children the others are."""
        return self._launcher.pid

    def wait_until_ready(self) -> None:
        """Waits for /health, and for the first figures."""
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError, ConfigError):
                self._get("/health")
                self._look()  # the figures come a moment later
                return
            if self._launcher.poll() is not None:
                raise ConfigError(f"`echelon serve` did not start:\n{_tail(self._log)}")
            if time.monotonic() > deadline:
                raise ConfigError(f"`echelon serve` was not ready after {_READY_SECONDS:g} s:\n{_tail(self._log)}")
            time.sleep(_LOOK_SECONDS)

    def answer(self, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
        """Answers one prompt over HTTP."""
        body = chat_body(prompt, self._settings, max_tokens=max_tokens, temperature=temperature)
        try:
            return stream_chat(self._port, prompt.question, body)
        except OSError as error:
            raise ConfigError(f"prompt {prompt.question}: {error}\n{_tail(self._log)}") from error

    def answers(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> list[Answer]:
        """Answers several prompts over as many connections."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.answer(prompt, temperature, max_tokens), prompts))

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
            with urllib.request.urlopen(request, timeout=_READY_SECONDS) as response:
                choice = json.load(response)["choices"][0]
        except OSError as error:
            raise ConfigError(f"prompt {prompt.question}: {error}\n{_tail(self._log)}") from error
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
                raise ConfigError(f"the engine's figures do not change any more\n{_tail(self._log)}")
            time.sleep(_LOOK_SECONDS)
            look = self._look()
            changes += look.number != last.number
            last = look
        return last

    def stop(self) -> None:
        """Stops the launcher, which takes its group down."""
        _stop(self._launcher)

    def _look(self) -> Status:
        return msgspec.json.decode(self._get("/status"), type=Status)

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._url(path), timeout=30) as response:
            content: bytes = response.read()
            return content

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"


class GenerateQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the Hugging Face process is asked, as one line of JSON, or a list of them at once."""

    question: str
    text: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    ignore_eos: bool


class HuggingFace:
    """`speculation.bench.hugging_face` in a process of its own; questions and answers are lines of JSON."""

    def __init__(self, settings: BenchSettings, log: Path) -> None:
        self._settings = settings
        self._log = log
        arguments = ["-m", "speculation.bench.hugging_face", settings.model]
        engine = settings.engine
        arguments += ["--threads", str(engine.threads), "--dtype", engine.dtype, "--device", engine.device[0]]
        self._process = _spawn(arguments, log, pipes=True)

    def wait_until_ready(self) -> None:
        """Waits for the first line."""
        self._read()

    def answer(self, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
        """Answers one prompt with `generate`."""
        self._ask(self._question(prompt, temperature, max_tokens))
        return msgspec.json.decode(self._read(), type=Answer)

    def answers(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> list[Answer]:
        """Answers several prompts with continuous batching."""
        self._ask([self._question(prompt, temperature, max_tokens) for prompt in prompts])
        return msgspec.json.decode(self._read(), type=list[Answer])

    def _question(self, prompt: Prompt, temperature: float, max_tokens: int) -> GenerateQuestion:
        settings = self._settings
        return GenerateQuestion(
            question=prompt.question,
            text=prompt.text,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            seed=prompt.seed,
            ignore_eos=settings.ignore_eos,
        )

    def _ask(self, what: GenerateQuestion | list[GenerateQuestion]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_read` says what has happened
            self._process.stdin.write(msgspec.json.encode(what) + b"\n")
            self._process.stdin.flush()

    def prefers(self, branch: Branch, prompt: Prompt, temperature: float) -> bool:
        """Never true: it has no frames of several tokens."""
        return False

    def snapshot(self) -> None:
        """It has no figures."""

    def stop(self) -> None:
        """Stops the process."""
        _stop(self._process)

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        line: bytes = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"Hugging Face `generate` has ended:\n{_tail(self._log)}")
        return line


def _spawn(arguments: Sequence[str], log: Path, *, pipes: bool = False) -> "subprocess.Popen[bytes]":
    """Python with `arguments`, in a process group of its own, so that Ctrl-C reaches only the bench."""
    environment = without_options(os.environ) | {PARENT_VARIABLE: str(os.getpid())}
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else output,
            stderr=output,
            env=environment,
            process_group=0,
        )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # of a question that nobody read
                stream.close()


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])

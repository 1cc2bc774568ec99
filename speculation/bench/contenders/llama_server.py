"""llama.cpp's server as a baseline, where there is one: the same file, prompts by token ids, no text of a cache."""

import json
import shutil
import urllib.request
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from speculation.bench.analysis.cells import Answer
from speculation.bench.configuration import LLAMA_CPP, BenchSettings
from speculation.bench.contenders.running import together
from speculation.bench.contenders.spawned import Spawned
from speculation.bench.contenders.streaming import stream_lines
from speculation.bench.near_ties import Branch
from speculation.bench.prompts import Prompt, chat_ids
from workers.shared.errors import ConfigError
from workers.shared.processes.free_port import free_port

_PROGRAM = "llama-server"
_UNKNOWN = -1  # a token that was not told: the server holds back what is no whole character yet


class LlamaServer:
    """A `llama-server` with a slot for each stream, on as many threads as a stage has."""

    def __init__(self, settings: BenchSettings, log: Path) -> None:
        """Raises `ConfigError` where the program or a file for it is missing."""
        program, file, engine = shutil.which(_PROGRAM), Path(settings.model), settings.engine
        if program is None:
            raise ConfigError(f"--methods {LLAMA_CPP}: {_PROGRAM} is not on the PATH")
        if file.suffix != ".gguf" or not file.is_file():
            raise ConfigError(f"--methods {LLAMA_CPP}: MODEL has to be a .gguf file, and is {settings.model}")
        self._settings = settings
        self._port = free_port()
        slots = engine.max_num_seqs
        room = slots * engine.max_model_len if engine.max_model_len else 0  # 0: what the model was trained for
        options = {"model": file, "port": self._port, "threads": engine.threads, "parallel": slots, "ctx-size": room}
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self._process = Spawned([program, "--host", "127.0.0.1", *arguments], log)

    def wait_until_ready(self) -> None:
        """Waits for /health."""
        url = f"http://127.0.0.1:{self._port}/health"
        self._process.await_ready(_PROGRAM, lambda: urllib.request.urlopen(url, timeout=30).close())

    def answer(self, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
        """Answers one prompt."""
        body = self._body(prompt, temperature, max_tokens)
        streamed = StreamedTokens()
        try:
            for line, time_us in stream_lines(self._port, "/completion", prompt.question, body):
                streamed.line(line, time_us)
        except OSError as error:
            raise ConfigError(f"prompt {prompt.question}: {error}\n{self._process.tail()}") from error
        return Answer(prompt.question, body["prompt"], streamed.tokens, streamed.times_us)

    def answers(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> list[Answer]:
        """Answers several prompts over as many connections."""
        return together(lambda prompt: self.answer(prompt, temperature, max_tokens), prompts)

    def prefers(self, branch: Branch, prompt: Prompt, temperature: float) -> bool:
        """Never asked: its tokens are compared with nobody's."""
        return False

    def snapshot(self) -> None:
        """It has no figures of ours."""

    def stop(self) -> None:
        """Stops the process."""
        self._process.stop()

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer  # takes seconds to import

        from workers.prepare.prepare import prepare

        return AutoTokenizer.from_pretrained(prepare(self._settings.model), local_files_only=True)

    def _body(self, prompt: Prompt, temperature: float, max_tokens: int) -> dict[str, Any]:
        settings = self._settings
        return {
            "prompt": chat_ids(self._tokenizer, prompt.text),
            "n_predict": max_tokens,
            "temperature": temperature,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
            "min_p": 0.0,
            "seed": prompt.seed,
            "ignore_eos": settings.ignore_eos,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": False,
        }


class StreamedTokens:
    """Puts an answer together from the lines of a stream."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.times_us: list[int] = []

    def line(self, line: bytes, time_us: int) -> None:
        """The next line, and when it arrived; raises `ConfigError` where it tells of an error."""
        if not line.startswith(b"data: "):
            return
        event = json.loads(line[6:])
        if "error" in event:
            raise ConfigError(f"{_PROGRAM}: {event['error']}")
        held_back = event["tokens_predicted"] - len(self.tokens) - len(event["tokens"])
        told = [*[_UNKNOWN] * max(0, held_back), *event["tokens"]]
        self.tokens += told
        self.times_us += [time_us] * len(told)

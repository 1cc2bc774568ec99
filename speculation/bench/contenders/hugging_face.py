"""Hugging Face beside the groups: a process that is asked line by line."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from speculation.bench.analysis.cells import Answer
from speculation.bench.configuration import BenchSettings
from speculation.bench.contenders.spawned import Spawned
from speculation.bench.near_ties import Branch
from speculation.bench.prompts import Prompt
from workers.shared.errors import ConfigError


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
        arguments = ["-m", "speculation.bench.hugging_face", settings.model]
        engine = settings.engine
        arguments += ["--threads", str(engine.threads), "--dtype", engine.dtype, "--device", engine.device[0]]
        self._process = Spawned.python(arguments, log, pipes=True)

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
        self._process.tell(msgspec.json.encode(what))

    def prefers(self, branch: Branch, prompt: Prompt, temperature: float) -> bool:
        """Never true: it has no frames of several tokens."""
        return False

    def snapshot(self) -> None:
        """It has no figures."""

    def stop(self) -> None:
        """Stops the process."""
        self._process.stop()

    def _read(self) -> bytes:
        line = self._process.hear()
        if not line:
            raise ConfigError(f"Hugging Face `generate` has ended:\n{self._process.tail()}")
        return line

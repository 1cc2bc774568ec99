"""A contender whose processes have been started."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from speculation.bench.analysis.cells import Answer
from speculation.bench.near_ties import Branch
from speculation.bench.prompts import Prompt
from workers.shared.messages import Status


class Running(Protocol):
    """Answers prompts until stopped."""

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


def together(ask: Callable[[Prompt], Answer], prompts: Sequence[Prompt]) -> list[Answer]:
    """Asks several prompts at one moment, each over a connection of its own."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, prompts))

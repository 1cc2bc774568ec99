"""Shards in a row, as the stage workers hold them, but called one after the other."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from workers.model.shard import Shard
from workers.shared.packed.rounding import Rounding

CPU = torch.device("cpu")


class Pipeline:
    """All stages of a model in this process."""

    def __init__(
        self,
        folder: Path,
        split: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        max_len: int = 128,
        sequences: int = 1,
        rounding: Rounding | None = None,
    ) -> None:
        self.stages = []
        start = 0
        for stage, count in enumerate(split):
            shard = Shard.load(
                folder,
                range(start, start + count),
                first=stage == 0,
                last=stage == len(split) - 1,
                dtype=dtype,
                device=CPU,
                max_len=max_len,
                sequences=sequences,
                rounding=rounding,
            )
            self.stages.append(shard)
            start += count

    def frame(self, position: int, tokens: Sequence[int], sequence: int = 0) -> Tensor:
        """Logits after the last of `tokens`."""
        hidden = None
        for shard in self.stages:
            hidden = shard.forward(sequence, position, tokens, hidden)
        return self.stages[-1].logits(hidden)

    def greedy(self, prompt: Sequence[int], count: int, chunk: int = 256) -> list[int]:
        """`count` tokens after `prompt`, whose prefill goes in chunks."""
        return [int(logits.argmax()) for logits in self.greedy_logits(prompt, count, chunk)]

    def greedy_logits(self, prompt: Sequence[int], count: int, chunk: int = 256) -> list[Tensor]:
        """The logits from which each of `count` greedy tokens is chosen."""
        for start in range(0, len(prompt), chunk):
            logits = self.frame(start, prompt[start : start + chunk])
        found = [logits]
        for position in range(len(prompt), len(prompt) + count - 1):
            found.append(self.frame(position, [int(found[-1].argmax())]))
        return found

"""What the identity tests share: drafters that are right, wrong or in between, and logits as the sampler saw them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import workers.stage.launch
from speculation.drafters.base import Drafter
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from workers.model.reference import load_reference
from workers.sampling.history import History
from workers.sampling.sampler import Sampled, Sampler
from workers.shared.messages import Sampling

Logits = dict[int, Tensor]


class RecordingSampler(Sampler):
    """Keeps the logits it saw, by position."""

    seen: Logits = {}  # noqa: RUF012 -- replaced by every test that reads it

    def sample(
        self,
        logits: Tensor,
        sampling: Sampling,
        position: int,
        history: History,
        allowed: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Sampled:
        self.seen[position] = logits.clone()
        assert len(history) == position
        return super().sample(logits, sampling, position, history, allowed, noise)


@contextmanager
def recorded_logits() -> Iterator[None]:
    """Engines that start inside record their logits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers.stage.launch, "Sampler", RecordingSampler)
        yield


def drafters(recorded: Sequence[int], vocab_size: int) -> dict[str, Drafter]:
    """Every drafter, by name; `recorded` is prompt and output of a plain run."""

    def scripted(wrong: float) -> Drafter:
        return ScriptedDrafter(Script([Recording(list(recorded), wrong_probability=wrong)]), vocab_size)

    return {
        "none": NoDrafter(),
        "ngram": NgramDrafter(4, 1),
        "right": scripted(0.0),
        "half right": scripted(0.5),
        "wrong": scripted(1.0),
    }


def generate(folder: Path, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
    """Greedy tokens of Hugging Face `generate`, in float32."""
    model = load_reference(folder, torch.float32)
    outputs = []
    for prompt in prompts:
        output = model.generate(
            torch.tensor([list(prompt)]), max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        outputs.append(output[0].tolist()[len(prompt) :])
    return outputs

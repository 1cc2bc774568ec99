"""What the identity tests share: drafters that are right, wrong or in between, and logits as the sampler saw them."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import workers.stage.launch
from speculation.cascade.drafter import CascadeDrafter
from speculation.cascade.line import SmallerLine
from speculation.cascade.messages import OpenText, WriteText
from speculation.decisions.cascade.smaller import Smaller
from speculation.drafters.base import Drafter
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from tests.harness import LocalEngine
from workers.model.reference import load_reference
from workers.sampling.history import History
from workers.sampling.sampler import Sampled, Sampler
from workers.shared.messages import Sampling

Logits = dict[int, Tensor]


class RecordingSampler(Sampler):
    """Keeps the logits it saw, by position."""

    seen: Logits = {}  # noqa: RUF012 -- replaced by every test that reads it

    @classmethod
    def forget(cls) -> None:
        """Begins anew."""
        # Those so far live until the class has others: a stage may look them up meanwhile, by way of Python's cache of
        # attributes, which does not keep alive what it points to.
        before = cls.seen
        cls.seen = {}
        del before

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


class NearbyModel(SmallerLine):
    """In place of a cascade: a model that has written ahead as soon as it is told, what it is `to_write` and errors."""

    _AHEAD = 6

    def __init__(self, end: Smaller, to_write: Sequence[int], wrong: float) -> None:
        super().__init__("unix:///nowhere", "nearby", [end])
        self._end = end
        self._to_write = to_write
        self._random = random.Random(0)
        self._wrong = wrong

    def tell(self) -> None:
        if (news := self._end.news()) is None:
            return
        position = len(news.tokens) if isinstance(news, OpenText) else news.position
        told = [] if isinstance(news, OpenText) else news.tokens
        ahead = self._to_write[position + len(told) :][: self._AHEAD]
        ahead = [(token + 1) % 100 if self._random.random() < self._wrong else token for token in ahead]
        self._end.heard(WriteText(news.slot, news.number, position, [*told, *ahead]))


def drafters(recorded: Sequence[int], vocab_size: int) -> dict[str, Drafter]:
    """Every drafter, by name; `recorded` is prompt and output of a plain run."""

    def scripted(wrong: float) -> Drafter:
        return ScriptedDrafter(Script([Recording(list(recorded), wrong_probability=wrong)]), vocab_size)

    def cascade(wrong: float) -> Drafter:
        end = Smaller(0)
        return CascadeDrafter(NearbyModel(end, recorded, wrong), end)

    return {
        "none": NoDrafter(),
        "ngram": NgramDrafter(4, 1),
        "right": scripted(0.0),
        "half right": scripted(0.5),
        "wrong": scripted(1.0),
        "cascade": cascade(0.2),
    }


def same_with_every_drafter(
    engine: LocalEngine, prompt: Sequence[int], new: int, sampling: Sampling | None
) -> list[int]:
    """The tokens of plain decoding; every drafter gives them, and logits equal to the last bit."""
    engine.drafting.use(NoDrafter())
    RecordingSampler.forget()
    plain = engine.client.generate(prompt, new, sampling).tokens
    logits = RecordingSampler.seen
    for name, drafter in drafters([*prompt, *plain], engine.vocab_size).items():
        engine.drafting.use(drafter)
        RecordingSampler.forget()
        assert engine.client.generate(prompt, new, sampling).tokens == plain, name
        assert all(torch.equal(RecordingSampler.seen[p], row) for p, row in logits.items()), name
    return plain


def generate(folder: Path, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
    """Greedy tokens of Hugging Face `generate`, in float32. Every split asks for the same: they are computed once."""
    return _generated(folder, tuple(map(tuple, prompts)), new)


@cache
def _generated(folder: Path, prompts: tuple[tuple[int, ...], ...], new: int) -> list[list[int]]:
    model = load_reference(folder, torch.float32)
    outputs = []
    for prompt in prompts:
        output = model.generate(
            torch.tensor([list(prompt)]), max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        outputs.append(output[0].tolist()[len(prompt) :])
    return outputs

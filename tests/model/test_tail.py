"""The last stage works ahead, and nobody can tell but by the clock."""

from typing import Any

import pytest
import torch
from torch import Tensor

from workers.sampling.sampler import Sampler
from workers.shared.frames import Frame
from workers.shared.messages import Open, Sample, Sampling
from workers.stage.tail import Tail

VOCABULARY = 50
PROMPT = (1, 2, 3)


class FixedLayers:
    """Logits that depend on the hidden state alone."""

    def __init__(self) -> None:
        self._head = torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(1))

    def logits(self, hidden: Tensor) -> Tensor:
        return (hidden[-1:] @ self._head)[0]

    def row_logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self._head


class CountingSampler(Sampler):
    """Notes the positions for which noise was made."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, torch.device("cpu"))
        self.made: list[int] = []

    def noise(self, sampling: Sampling, position: int) -> Tensor | None:
        self.made.append(position)
        return super().noise(sampling, position)


def opened(sampling: Sampling) -> tuple[Tail, CountingSampler]:
    sampler = CountingSampler()
    layers: Any = FixedLayers()
    tail = Tail(layers, sampler)
    tail.open(Open(0, 0, len(PROMPT), sampling))
    return tail, sampler


def hidden(position: int, rows: int = 1) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(position))


def run(tail: Tail, frames: list[Frame], *, ahead: bool) -> list[Sample]:
    samples = []
    for frame in frames:
        samples.append(tail.finish(frame, hidden(frame.position, len(frame.tokens))))
        if ahead:
            tail.prepare()
    return samples


@pytest.mark.parametrize(
    "parameters",
    [{}, {"top_k": 5}, {"repetition_penalty": 1.3, "frequency_penalty": 0.5}, {"temperature": 0.0}],
)
def test_samples_are_the_same_whether_it_works_ahead_or_not(parameters: dict[str, Any]) -> None:
    sampling = Sampling(seed=4, **parameters)
    first = Frame(0, 0, 0, 0, PROMPT, True)
    plain: list[list[Sample]] = []
    for ahead in (False, True):
        tail, _ = opened(sampling)
        samples = run(tail, [first], ahead=ahead)
        for position in range(3, 9):
            (token,) = samples[-1].tokens
            wrong = (token + 1) % VOCABULARY
            # The frame of the right token; then one behind a wrong draft, as if the rejection were not known yet.
            samples += run(tail, [Frame(position, 0, 0, position, (token, wrong), True)], ahead=ahead)
            assert len(samples[-1].tokens) in (1, 2)
            samples += run(tail, [Frame(position, 0, 0, position, (token,), True)], ahead=ahead)
        plain.append(samples)
    assert plain[0] == plain[1]


def test_the_noise_of_the_next_position_is_made_before_its_frame_comes() -> None:
    tail, sampler = opened(Sampling(seed=4))
    (sample,) = run(tail, [Frame(0, 0, 0, 0, PROMPT, True)], ahead=True)
    assert sampler.made == [3, 4]
    run(tail, [Frame(1, 0, 0, 3, sample.tokens, True)], ahead=False)
    assert sampler.made == [3, 4]
    tail.prepare()
    assert sampler.made == [3, 4, 5]
    tail.prepare()
    assert sampler.made == [3, 4, 5]

"""Logprobs of a prompt's tokens are the model's, whatever the split, the chunks and what a slot holds already."""

from pathlib import Path

import pytest
import torch

from tests.harness import local_engine
from tests.model.pipeline import Pipeline
from workers.shared.messages import Sampling

PROMPT = [int(token) for token in torch.randint(0, 256, (75,), generator=torch.Generator().manual_seed(3))]
SCORED = Sampling(seed=0, temperature=0, prompt_logprobs=2)


def reference(folder: Path, prompt: list[int]) -> list[tuple[float, list[int]]]:
    """Logprob of each token but the first, and the two most likely ones, from frames of one token."""
    whole = Pipeline(folder, (4,))
    found = []
    for position, token in enumerate(prompt[1:]):
        logprobs = whole.frame(position, prompt[position : position + 1]).log_softmax(0)
        found.append((float(logprobs[token]), logprobs.topk(2).indices.tolist()))
    return found


@pytest.mark.parametrize(("split", "chunk"), [((4,), 128), ((2, 2), 40), ((1, 1, 2), 7)])
def test_prompt_logprobs(tiny_model: Path, split: tuple[int, ...], chunk: int) -> None:
    expected = reference(tiny_model, PROMPT)
    with local_engine(tiny_model, split, prefill_chunk=chunk, max_model_len=128, max_num_seqs=2) as engine:
        plain = engine.client.generate(PROMPT, 5)
        assert plain.prompt_logprobs == []
        for prompt in (PROMPT, PROMPT[:50], PROMPT[:1]):
            scored = engine.client.generate(prompt, 1, SCORED)
            assert (scored.cached, len(scored.prompt_logprobs)) == (0, len(prompt) - 1)
            for told, (logprob, likely) in zip(scored.prompt_logprobs, expected, strict=False):
                assert told.logprob == pytest.approx(logprob, abs=1e-4)
                assert [token for token, _ in told.top] == likely
        again = engine.client.generate(PROMPT, 5)
        assert again.tokens == plain.tokens

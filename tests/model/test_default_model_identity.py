"""SmolLM2 through the pipeline: the tokens of Hugging Face `generate`, and the same logits with every drafter."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tests.harness import LocalEngine, local_engine
from tests.model.identity import RecordingSampler, drafters, generate, one_thread, recorded_logits
from workers.messages import Sampling
from workers.model_bytes import layer_bytes
from workers.split import balance

pytestmark = pytest.mark.timeout(600)

LENGTHS = (1, 2, 40, 700)
NEW = 10
TEXT = (
    "A small town lies by the river. Every morning the baker opens her shop, greets the miller, and counts the loaves: "
    "one, two, three, four, five. On Sundays the bells ring, the children run to the bridge, and somebody asks why it "
    "was built of stone. def f(x): return x + 1\n"
)


@pytest.fixture(scope="module")
def references(default_model: Path) -> dict[int, tuple[list[int], list[int]]]:
    """Prompt and greedy output, by length of the prompt."""
    ids = Tokenizer.from_file(str(default_model / "tokenizer.json")).encode(TEXT * 20).ids
    prompts = [ids[:length] for length in LENGTHS]
    return dict(zip(LENGTHS, zip(prompts, generate(default_model, prompts, NEW), strict=True), strict=True))


@pytest.fixture(scope="module", params=[1, 2, 3, 5], ids="n={}".format)
def engine(request: pytest.FixtureRequest, default_model: Path) -> Iterator[LocalEngine]:
    split = balance(*layer_bytes(default_model), request.param)
    with one_thread(), recorded_logits(), local_engine(default_model, split, max_model_len=1024) as running:
        yield running


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy(engine: LocalEngine, references: dict[int, tuple[list[int], list[int]]], length: int) -> None:
    prompt, expected = references[length]
    plain: dict[int, torch.Tensor] = {}
    for name, drafter in drafters(prompt + expected, engine.vocab_size).items():
        engine.drafter.current = drafter
        RecordingSampler.seen = {}
        assert engine.client.generate(prompt, NEW).tokens == expected, name
        plain = plain or RecordingSampler.seen
        for position in range(length, length + NEW):
            assert torch.equal(RecordingSampler.seen[position], plain[position]), f"{name}: logits at {position}"


@pytest.fixture(scope="module")
def first_seen() -> dict[str, list[int]]:
    """Filled by the first pipeline, read by the others."""
    return {}


def test_seeded_sampling(
    engine: LocalEngine, references: dict[int, tuple[list[int], list[int]]], first_seen: dict[str, list[int]]
) -> None:
    prompt, _ = references[40]
    sampling = Sampling(seed=5, temperature=1.0, top_p=0.9, top_k=100, frequency_penalty=0.3, repetition_penalty=1.1)
    engine.drafter.current = drafters([], engine.vocab_size)["none"]
    plain = engine.client.generate(prompt, NEW, sampling).tokens
    assert plain == first_seen.setdefault("seeded", plain), "the split changes the text"
    for name, drafter in drafters(prompt + plain, engine.vocab_size).items():
        engine.drafter.current = drafter
        assert engine.client.generate(prompt, NEW, sampling).tokens == plain, name

"""SmolLM2 through the pipeline: the tokens of Hugging Face `generate`, and the same logits with every drafter."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tokenizers import Tokenizer

from speculation.drafters.base import Drafter, Maker
from speculation.drafters.combined import CombinedDrafter
from speculation.drafters.exit import load as load_exit
from speculation.drafters.load_pdm import load
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.pdm import PdmDrafter
from speculation.heads.config import HeadConfig
from tests.harness import LocalEngine, inproc_endpoints, local_engine
from tests.model.heads.made import drafters_of, random_head
from tests.model.identity import RecordingSampler, drafters, generate, recorded_logits
from workers.decisions.split import balance
from workers.shared.config import DrafterConfig, EngineConfig
from workers.shared.messages import Sampling
from workers.shared.model_files.facts import read_facts
from workers.shared.model_files.shipped_modules import shipped_module
from workers.shared.model_files.tensor_sizes import layer_bytes

pytestmark = pytest.mark.timeout(600)

NAME = "SmolLM2-135M-Instruct"
EXIT_HEAD = Path(__file__).parents[1] / "measure/trained/exit"
CONTEXT = 1024
CHUNK = 64  # tokens of a prompt's frame
LENGTHS = (1, 40, 150)  # the longest is two whole chunks and a piece of one
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


@pytest.fixture(scope="module", params=[2, 5], ids="n={}".format)
def engine(request: pytest.FixtureRequest, default_model: Path) -> Iterator[LocalEngine]:
    split = balance(*layer_bytes(default_model), request.param)
    anchors = module_drafter(default_model, split)(0).anchors
    settings: dict[str, Any] = {"max_model_len": CONTEXT, "prefill_chunk": CHUNK}
    with recorded_logits(), local_engine(default_model, split, anchors, **settings) as running:
        yield running


def module_drafter(model: Path, split: tuple[int, ...]) -> Callable[[int], PdmDrafter]:
    """The draft module that comes with Echelon, as `make serve` runs it."""
    config = DrafterConfig("pdm", module=str(shipped_module(NAME)), module_target=NAME)
    engine = EngineConfig(str(model), split, inproc_endpoints(len(split)), max_model_len=CONTEXT, drafter=config)
    return load(engine, read_facts(model).vocab_size)


def exit_drafter(model: Path, split: tuple[int, ...]) -> Callable[[int], PdmDrafter]:
    """The exit head of the comparison of methods."""
    config = DrafterConfig("exit", module=str(EXIT_HEAD), module_target=NAME)
    engine = EngineConfig(str(model), split, inproc_endpoints(len(split)), max_model_len=CONTEXT, drafter=config)
    return load_exit(engine, read_facts(model).vocab_size)


@pytest.fixture(scope="module")
def modules(engine: LocalEngine, default_model: Path) -> dict[str, Maker]:
    """The module alone, and combined with n-grams; an exit head, and draft heads."""
    pdm = module_drafter(default_model, engine.split)

    def combined(slot: int) -> Drafter:
        return CombinedDrafter(pdm(slot), NgramDrafter(6, 1), module_delays_stages=True)

    return {
        "pdm": pdm,
        "pdm+ngram": combined,
        "exit": exit_drafter(default_model, engine.split),
        **head_drafters(engine.split),
    }


def head_drafters(split: Sequence[int]) -> dict[str, Maker]:
    """Draft heads with random weights: most of what they draft is wrong."""
    config = HeadConfig(
        hidden_size=64,
        intermediate_size=96,
        attention_heads=4,
        kv_heads=2,
        head_dim=16,
        layers=1,
        vocab_size=49152,
        draft_vocab_size=2000,
        features=(2, 15, 27),
        target_hidden_size=576,
        own_embedding=True,
    )
    parallel = msgspec.structs.replace(config, layers=2, mask_token_id=0)
    heads = {"eagle3": config, "peagle": parallel}
    return {name: drafters_of(random_head(head), split, CONTEXT, len(split)) for name, head in heads.items()}


@pytest.mark.parametrize(("engine", "length"), [(2, 150), (5, 1), (5, 150)], indirect=["engine"], scope="module")
def test_greedy(
    engine: LocalEngine,
    references: dict[int, tuple[list[int], list[int]]],
    modules: dict[str, Maker],
    length: int,
) -> None:
    prompt, expected = references[length]
    plain: dict[int, torch.Tensor] = {}
    for name, drafter in (drafters(prompt + expected, engine.vocab_size) | modules).items():
        engine.drafting.use(drafter)
        RecordingSampler.forget()
        assert engine.client.generate(prompt, NEW).tokens == expected, name
        plain = plain or RecordingSampler.seen
        for position in range(length, length + NEW):
            assert torch.equal(RecordingSampler.seen[position], plain[position]), f"{name}: logits at {position}"


@pytest.fixture(scope="module")
def first_seen() -> dict[str, list[int]]:
    """Filled by the first pipeline, read by the others."""
    return {}


def test_seeded_sampling(
    engine: LocalEngine,
    references: dict[int, tuple[list[int], list[int]]],
    modules: dict[str, Maker],
    first_seen: dict[str, list[int]],
) -> None:
    prompt, _ = references[40]
    sampling = Sampling(seed=5, temperature=1.0, top_p=0.9, top_k=100, frequency_penalty=0.3, repetition_penalty=1.1)
    engine.drafting.use(drafters([], engine.vocab_size)["none"])
    plain = engine.client.generate(prompt, NEW, sampling).tokens
    assert plain == first_seen.setdefault("seeded", plain), "the split changes the text"
    for name, drafter in (drafters(prompt + plain, engine.vocab_size) | modules).items():
        engine.drafting.use(drafter)
        assert engine.client.generate(prompt, NEW, sampling).tokens == plain, name

"""All stages on one card, in one process: identity with CPU tokens, rollback, and timings.

A few minutes on any CUDA device: `python -m pytest tests/gpu -s`. NCCL needs a card a stage and is not covered here.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from speculation.drafters.none import NoDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from tests.harness import LocalEngine, local_engine
from tests.model.identity import drafters, generate, recorded_logits, same_with_every_drafter
from workers.decisions.split import balance
from workers.shared.messages import Sampling
from workers.shared.model_files.tensor_sizes import layer_bytes

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]
NEW = 40


@pytest.fixture(scope="module", params=[(1, "eager"), (1, ""), (2, ""), (2, "fuse"), (3, "eager"), (5, "")], ids=str)
def engine(request: pytest.FixtureRequest, default_model: Path) -> Iterator[LocalEngine]:
    """So many stages, whose frames are recorded, with fused layers or not, or are eager."""
    stages, how = request.param
    settings = {"enforce_eager": how == "eager", "fuse_layers": how == "fuse"}
    split = balance(*layer_bytes(default_model), stages)
    with (
        recorded_logits(),
        local_engine(default_model, split, devices=("cuda:0",), max_model_len=1024, **settings) as running,
    ):
        yield running


def test_greedy_tokens_are_those_of_the_cpu(engine: LocalEngine, default_model: Path) -> None:
    (expected,) = generate(default_model, [PROMPT], NEW)
    engine.drafting.use(NoDrafter())
    assert engine.client.generate(PROMPT, NEW).tokens == expected


def test_tokens_and_logits_do_not_depend_on_the_drafter(engine: LocalEngine) -> None:
    sampling = Sampling(seed=5, temperature=1.0, top_p=0.9, top_k=100, repetition_penalty=1.1)
    for parameters in (None, sampling):
        same_with_every_drafter(engine, PROMPT, NEW, parameters)


def test_rejections_anywhere_leave_nothing_behind(engine: LocalEngine) -> None:
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(PROMPT, NEW).tokens
    for position in range(len(PROMPT) + 1, len(PROMPT) + 12):
        script = Script([Recording(PROMPT + plain, frozenset({position, position + 1}))])
        engine.drafting.use(ScriptedDrafter(script, engine.vocab_size))
        assert engine.client.generate(PROMPT, NEW).tokens == plain, position


def test_timings(engine: LocalEngine) -> None:
    """Prints; a speed is never asserted."""
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(PROMPT, 200).tokens
    for name, drafter in drafters(PROMPT + plain, engine.vocab_size).items():
        engine.drafting.use(drafter)
        before, started = engine.client.status(), time.perf_counter()
        engine.client.generate(PROMPT, 200)
        seconds, after = time.perf_counter() - started, engine.client.status()
        stages = [
            {
                phase: round((getattr(b, phase) - getattr(a, phase)) / 1e6 / max(1, b.frames - a.frames), 3)
                for phase in ("idle_ns", "receive_ns", "forward_ns", "sample_ns", "send_ns")
            }
            for a, b in zip(before.stages, after.stages, strict=True)
        ]
        print(f"{len(stages)} stages, {name}: {200 / seconds:.1f} tokens/s; ms a frame: {stages}")
    print(torch.cuda.get_device_name(0), torch.__version__)

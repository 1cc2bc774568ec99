"""Frames that are recorded and repeated, as on a GPU: here repeating means to do the same work again, on a CPU."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch._dynamo.eval_frame import OptimizedModule

import workers.decisions.key_buckets
import workers.stage.launch
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from tests.harness import LocalEngine, local_engine
from tests.model.conftest import VOCABULARY
from tests.model.identity import generate, recorded_logits, same_with_every_drafter
from tests.model.rerun import Rerun
from workers.model.captured_shard import CapturedShard
from workers.model.recorder import Work
from workers.model.shard import Shard
from workers.shared.errors import OutOfStep
from workers.shared.messages import Sampling
from workers.shared.model_files.json_file import read_json

MAX_LEN = 150  # with `_short_contexts` three lengths of context: 64, 128 and 150
TEXT = [(37 * i + 11) % VOCABULARY for i in range(MAX_LEN)]
PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]
NEW = 40


class Counting(Rerun):
    """Counts what is recorded, and what is repeated."""

    def __init__(self) -> None:
        self.recorded = self.repeated = 0

    def record(self, work: Work) -> Work:
        self.recorded += 1
        again = super().record(work)

        def repeat() -> None:
            self.repeated += 1
            again()

        return repeat


@pytest.fixture(scope="module", autouse=True)
def _short_contexts() -> Iterator[None]:
    with patch.object(workers.decisions.key_buckets, "_FIRST", 64):
        yield


def load(folder: Path, layers: range, *, first: bool = True, last: bool = True) -> Shard:
    return Shard.load(
        folder, layers, first=first, last=last, dtype=torch.float32, device=torch.device("cpu"), max_len=MAX_LEN,
        sequences=2, scratch=3,
    )  # fmt: skip


@torch.inference_mode()
def test_as_the_shard_itself_but_for_rounding(model_folder: Path) -> None:
    layers = read_json(model_folder / "config.json")["num_hidden_layers"]
    plain = load(model_folder, range(layers))
    if plain.recurrent:
        pytest.skip("layers that keep states are not recorded")
    recorder = Counting()
    captured = CapturedShard(load(model_folder, range(layers)), recorder, (1, 4))
    assert recorder.recorded == 2 * 2 * 3 + 2  # lengths, slots, numbers of keys; and the heads
    for shard in (plain, captured):
        shard.observe([1, layers])
        shard.forward(1, 0, TEXT[:125], None)
    for position, length in ((125, 1), (126, 4), (127, 1), (128, 1), (62, 1), (62, 4), (129, 3), (146, 4), (0, 1)):
        before, results = recorder.repeated, []
        for shard in (plain, captured):
            taps: list[torch.Tensor] = []
            hidden = shard.forward(1, position, TEXT[position : position + length], None, taps)
            results.append(torch.cat([hidden, *taps, shard.row_logits(hidden)], dim=-1))
        torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-3)
        assert recorder.repeated - before == (2 if length in {1, 4} else 0)


@torch.inference_mode()
def test_fused_layers_share_weights_and_are_those_of_recorded_frames_alone(tiny_model: Path) -> None:
    """A backend that compiles nothing changes no bit."""
    shard = load(tiny_model, range(4))
    layers = shard.fused("eager")
    for fused_layer, layer in zip(layers, shard._layers, strict=True):
        compiled = [name for name, of in fused_layer.module.named_children() if isinstance(of, OptimizedModule)]
        assert compiled == ["mlp", "input_layernorm", "post_attention_layernorm"]
        assert not any(isinstance(of, OptimizedModule) for of in layer.module.modules())
        assert {id(weight) for weight in fused_layer.module.parameters()} == set(map(id, layer.module.parameters()))
    captured = CapturedShard(load(tiny_model, range(4)), Rerun(), (1,))
    fused = CapturedShard(shard, Rerun(), (1,), layers=layers)
    for position in range(3):
        assert torch.equal(*(of.forward(0, position, [TEXT[position]], None) for of in (captured, fused)))


@torch.inference_mode()
def test_what_lies_behind_a_frame_is_not_seen(tiny_model: Path) -> None:
    shard = load(tiny_model, range(4))
    captured = CapturedShard(shard, Rerun(), (1,))
    captured.forward(0, 0, TEXT[:20], None)
    clean = captured.forward(0, 20, [5], None)
    for keys, values in shard.kv.layers(0).values():
        keys[:, :, 3 + 20 :] = keys[:, :, :3] = 1e4
        values[:, :, 3 + 20 :] = values[:, :, :3] = -1e4
    assert torch.equal(captured.forward(0, 20, [5], None), clean)
    assert torch.equal(captured.forward(0, 20, [5], None), clean)


@torch.inference_mode()
def test_a_stage_in_the_middle_and_one_that_is_the_head_alone(tiny_model: Path) -> None:
    hidden = torch.randn(1, 20, load(tiny_model, range(1)).hidden_size)[0]
    for layers, last in ((range(5, 9), False), (range(16, 16), True)):
        plain = load(tiny_model, layers, first=False, last=last)
        captured = CapturedShard(load(tiny_model, layers, first=False, last=last), Rerun(), (1,))
        for shard in (plain, captured):
            shard.forward(0, 0, TEXT[:19], hidden[:19])
        results = [shard.forward(0, 19, TEXT[19:20], hidden[19:]) for shard in (plain, captured)]
        torch.testing.assert_close(results[1], results[0])
        if last:
            assert torch.equal(captured.logits(results[0]), plain.logits(results[0]))


def test_what_does_not_fit_is_refused_by_name(tiny_model: Path) -> None:
    captured = CapturedShard(load(tiny_model, range(1)), Rerun(), (1,))
    with pytest.raises(OutOfStep, match="outside of a slot"):
        captured.forward(0, MAX_LEN, [1], None)
    with pytest.raises(OutOfStep, match="expected hidden states None"):
        captured.forward(0, 0, [1], torch.zeros(1, captured.hidden_size))


class Refusing(Rerun):
    """A device that cannot record."""

    def record(self, work: Work) -> Work:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture(params=[(16,), (6, 5, 5)], ids=str)
def engine(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[LocalEngine]:
    with (
        patch.object(workers.stage.launch, "recorder_for", lambda *_: Rerun()),
        recorded_logits(),
        local_engine(tiny_model, request.param, max_model_len=150, prefill_chunk=64) as running,
    ):
        yield running


def test_an_engine_of_recorded_frames_gives_plain_decoding_bit_by_bit(engine: LocalEngine, tiny_model: Path) -> None:
    (expected,) = generate(tiny_model, [PROMPT], NEW)
    sampling = Sampling(seed=5, temperature=1.0, top_p=0.9, top_k=100, repetition_penalty=1.1)
    for parameters in (None, sampling):
        plain = same_with_every_drafter(engine, PROMPT, NEW, parameters)
        assert parameters is not None or plain == expected


def test_a_device_that_cannot_record_computes_all_the_same(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        patch.object(workers.stage.launch, "recorder_for", lambda *_: Refusing()),
        local_engine(tiny_model, (8, 8), max_model_len=150) as engine,
    ):
        plain = engine.client.generate(PROMPT, NEW).tokens
        assert plain == generate(tiny_model, [PROMPT], NEW)[0]
        engine.drafting.use(ScriptedDrafter(Script([Recording(PROMPT + plain)]), engine.vocab_size))
        assert engine.client.generate(PROMPT, NEW).tokens == plain
    assert "as with --enforce-eager" in capsys.readouterr().err

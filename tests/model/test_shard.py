"""Shards in a row against Hugging Face, for every supported architecture."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.model.conftest import CONFIGS, LAYERS, VOCABULARY, write_model
from tests.model.pipeline import CPU, Pipeline
from workers.model.shard import Shard
from workers.shared.errors import ConfigError, OutOfStep
from workers.shared.model_files.expected import check_tensors
from workers.shared.model_files.tensor_sizes import layer_bytes

SPLITS = [(6,), (3, 3), (1, 3, 2), (1, 1, 2, 1, 1), (5, 1, 0)]
PROMPT = [(37 * i + 11) % VOCABULARY for i in range(30)]  # longer than every sliding window


@torch.inference_mode()
def reference_logits(folder: Path, tokens: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Hugging Face's logits [len(tokens), vocabulary]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model(torch.tensor([tokens])).logits[0].float()


def reference_greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    """Hugging Face's greedy continuation."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("length", [1, 30])
def test_greedy_tokens_equal_generate_for_every_split(model_folder: Path, length: int) -> None:
    expected = reference_greedy(model_folder, PROMPT[:length], 24)
    assert len(set(expected)) > 4, "the reference says too little to be worth comparing with"
    for split in SPLITS:
        assert Pipeline(model_folder, split).greedy(PROMPT[:length], 24) == expected, split


def test_logits_are_close_at_every_length(model_folder: Path) -> None:
    expected = reference_logits(model_folder, PROMPT)
    pipeline = Pipeline(model_folder, (2, 4))
    for length in range(1, len(PROMPT) + 1):
        torch.testing.assert_close(pipeline.frame(0, PROMPT[:length]), expected[length - 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 2, 7, 29])
def test_chunked_prefill_equals_unchunked(model_folder: Path, chunk: int) -> None:
    whole = Pipeline(model_folder, (6,)).greedy_logits(PROMPT, 5)
    chunked = Pipeline(model_folder, (4, 2)).greedy_logits(PROMPT, 5, chunk)
    for one, other in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_decoding_has_the_same_bits_for_every_split(model_folder: Path) -> None:
    expected = Pipeline(model_folder, (6,)).greedy_logits(PROMPT, 12, chunk=8)
    for split in SPLITS[1:]:
        found = Pipeline(model_folder, split).greedy_logits(PROMPT, 12, chunk=8)
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True)), split


def test_rejected_frames_and_other_slots_leave_no_trace(model_folder: Path) -> None:
    plain = Pipeline(model_folder, (2, 2, 2))
    expected = plain.greedy_logits(PROMPT, 12)
    disturbed = Pipeline(model_folder, (2, 2, 2), sequences=2)
    disturbed.frame(0, PROMPT[::-1], sequence=1)
    disturbed.frame(0, [(token + 1) % VOCABULARY for token in PROMPT])  # what an earlier request left in the slot
    disturbed.frame(0, PROMPT)
    for step, logits in enumerate(expected[:-1]):
        position = len(PROMPT) + step
        for ahead in range(4):  # drafts that turn out to be wrong
            disturbed.frame(position + ahead, [(7 * ahead + step) % VOCABULARY])
        disturbed.frame(position, [5, 6, 7], sequence=1)
        assert torch.equal(disturbed.frame(position, [int(logits.argmax())]), expected[step + 1])


def test_bfloat16_is_as_close_as_the_reference(tmp_path: Path) -> None:
    for name in ("llama-rope-yarn", "gemma3"):
        write_model(CONFIGS[name], tmp_path / name, torch.bfloat16)
        expected = reference_logits(tmp_path / name, PROMPT, torch.bfloat16)[-1]
        found = Pipeline(tmp_path / name, (3, 3), dtype=torch.bfloat16).frame(0, PROMPT)
        exact = Pipeline(tmp_path / name, (3, 3), dtype=torch.float32).frame(0, PROMPT)
        assert found.dtype == torch.float32
        assert (found - exact).norm() < 2 * (expected - exact).norm() + 0.01 * exact.norm()


def test_only_this_shards_tensors_are_read(model_folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(model_folders["llama"], folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    needed = {
        file for name, file in index["weight_map"].items() if name.startswith(("model.layers.2.", "model.layers.3."))
    }
    others = {path for path in folder.glob("*.safetensors") if path.name not in needed}
    assert others
    for path in others:  # keep the headers, which are checked as a whole, and lose the data
        header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        path.write_bytes(path.read_bytes()[:header])
    options = {"dtype": torch.float32, "device": CPU, "max_len": 16, "sequences": 1}
    steps: list[tuple[int, int]] = []
    shard = Shard.load(
        folder, range(2, 4), first=False, last=False, progress=lambda *step: steps.append(step), **options
    )
    assert shard.weight_bytes == sum(layer_bytes(folder)[0][2:4])
    assert len(steps) == 18
    assert steps == sorted(steps)
    assert {total for _, total in steps} == {steps[-1][0]} == {shard.weight_bytes}
    assert shard.kv_bytes == 2 * 2 * 2 * 12 * 16 * 4


def test_tied_weights_are_held_once(model_folders: dict[str, Path]) -> None:
    folder = model_folders["llama-tied"]
    layers, head = layer_bytes(folder)
    options = {"dtype": torch.float32, "device": CPU, "max_len": 16, "sequences": 1}
    alone = Shard.load(folder, range(LAYERS), first=True, last=True, **options)
    assert alone.weight_bytes == sum(layers) + head
    final = Shard.load(folder, range(LAYERS, LAYERS), first=False, last=True, **options)
    assert final.weight_bytes == head
    assert final.kv_bytes == 0


def _load(folder: Path, layers: range = range(LAYERS), max_len: int = 64) -> Shard:
    return Shard.load(
        folder, layers, first=True, last=True, dtype=torch.float32, device=CPU, max_len=max_len, sequences=1
    )


def test_frames_that_do_not_fit_are_out_of_step(model_folders: dict[str, Path]) -> None:
    shard = _load(model_folders["llama"], max_len=8)
    shard.forward(0, 0, range(8), None)
    for position, length in ((0, 9), (8, 1), (-1, 1)):
        with pytest.raises(OutOfStep, match="outside of a slot of 8"):
            shard.forward(0, position, range(length), None)


def test_wrong_hidden_states_are_out_of_step(model_folders: dict[str, Path]) -> None:
    inner = Shard.load(
        model_folders["llama"],
        range(1, 2),
        first=False,
        last=False,
        dtype=torch.float32,
        device=CPU,
        max_len=8,
        sequences=1,
    )
    for hidden in (None, torch.zeros(2, 48), torch.zeros(1, 47)):
        with pytest.raises(OutOfStep, match=r"expected hidden states \[1, 48\]"):
            inner.forward(0, 0, [3], hidden)
    with pytest.raises(OutOfStep, match="last stage"):
        inner.logits(torch.zeros(1, 48))


def test_bad_models_and_limits_are_refused(model_folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--max-model-len 257"):
        _load(model_folders["llama"], max_len=257)
    with pytest.raises(ConfigError, match=r"layers 3\.\.6"):
        _load(model_folders["llama"], range(3, 7))

    lacking = tmp_path / "lacking"
    shutil.copytree(model_folders["llama"], lacking)
    index = json.loads((lacking / "model.safetensors.index.json").read_text())
    del index["weight_map"]["model.layers.4.mlp.up_proj.weight"]
    (lacking / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"holds model\.layers\.4\.mlp\.up_proj\.weight, which the index does not"):
        _load(lacking)

    headless = tmp_path / "headless"
    shutil.copytree(model_folders["llama-tied"], headless)
    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(ConfigError, match=r"lacks lm_head\.weight"):
        _load(headless)

    misshapen = tmp_path / "misshapen"
    shutil.copytree(model_folders["llama"], misshapen)
    config = json.loads((misshapen / "config.json").read_text())
    (misshapen / "config.json").write_text(json.dumps({**config, "intermediate_size": 81}))
    with pytest.raises(ConfigError, match="size mismatch"):
        _load(misshapen)


def test_config_json_tells_which_tensors_a_checkpoint_has(model_folder: Path) -> None:
    check_tensors(model_folder)


def test_values_that_are_no_numbers_are_refused_by_name(model_folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(model_folders["llama"], tmp_path / "damaged")
    damaged = next(iter(sorted(folder.glob("*.safetensors"))))
    tensors = load_file(damaged)
    name = next(iter(tensors))
    tensors[name].view(-1)[-1] = float("nan")
    save_file(tensors, damaged, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"{name} has values that are infinite or not numbers in float32"):
        _load(folder)


def test_too_long_a_context_names_what_would_fit(
    model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.model.shard.available_host_bytes", lambda: 800_000)
    with pytest.raises(ConfigError, match=r"--max-model-len 256: .* use --max-model-len \d+ or less") as caught:
        _load(model_folders["llama"], max_len=256)
    longest = int(str(caught.value).rsplit("--max-model-len ", 1)[1].split()[0])
    _load(model_folders["llama"], max_len=longest)
    with pytest.raises(ConfigError):
        _load(model_folders["llama"], max_len=longest + 1)

"""`python -m workers.prepare`, as the launcher runs it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.model.gguf_file import write_gguf
from tests.model.hub_stub import COMMIT, hub
from tests.model.pipeline import Pipeline
from workers.prepare.default_model import check_hash
from workers.prepare.gguf.convert import write_converted
from workers.prepare.tiny_model import write_tiny_model
from workers.shared.errors import ConfigError
from workers.shared.model_files.end_tokens import read_end_tokens


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


def prepare(model: str, cache: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end, with caches of its own."""
    variables = {"ECHELON_CACHE": str(cache / "echelon"), "HF_HOME": str(cache / "hub"), "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-m", "workers.prepare", model, *options],
        env={**os.environ, **variables, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def prepared(result: subprocess.CompletedProcess[str]) -> Path:
    """The folder that a successful run names."""
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.splitlines()[-1])


def assert_refused(result: subprocess.CompletedProcess[str], reason: str) -> None:
    """Nothing on stdout, status 2, and on stderr one line with the reason, besides progress."""
    assert (result.returncode, result.stdout) == (2, "")
    lines = [line for line in result.stderr.splitlines() if line.startswith("echelon: ")]
    assert len(lines) == 1, result.stderr
    assert reason in lines[0]


def test_tiny(tmp_path: Path) -> None:
    folder = prepared(prepare("tiny", tmp_path))
    assert folder.parent == tmp_path / "echelon"
    assert len(Pipeline(folder, (16,)).greedy([5], 3)) == 3


def test_folders_are_used_in_place(tiny: Path, tmp_path: Path) -> None:
    assert prepared(prepare(str(tiny), tmp_path)) == tiny
    assert not (tmp_path / "echelon").exists()


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "no tokenizer.json"),
        ("model.safetensors", "no model.safetensors"),
    ],
)
def test_incomplete_folders_are_refused(tiny: Path, tmp_path: Path, lacks: str, reason: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / lacks).unlink()
    assert_refused(prepare(str(folder), tmp_path), reason)


def test_unsupported_architectures_are_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    assert_refused(prepare(str(folder), tmp_path), "'mamba' is not supported: it has recurrent layers")


@pytest.mark.parametrize("name", ["no-such-thing", "./no/such/path", "/no/such.gguf", "a/b/c"])
def test_what_is_neither_path_nor_hub_name_is_refused(tmp_path: Path, name: str) -> None:
    assert_refused(prepare(name, tmp_path), f"{name}: no such folder or file")


def test_other_files_are_refused(tiny: Path, tmp_path: Path) -> None:
    assert_refused(prepare(str(tiny / "model.safetensors"), tmp_path), "neither a model folder nor a .gguf file")


def test_hub_model(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    (source / "original").mkdir()
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("template")
    for unwanted in ("pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "run.py"):
        (source / unwanted).write_bytes(b"unwanted")
    with hub({"org/name": source}) as (endpoint, asked):
        folder = prepared(prepare("org/name", tmp_path, HF_ENDPOINT=endpoint))
        wanted = {path.name for path in tiny.iterdir()} | {"additional_chat_templates"}
        assert {path.name for path in folder.iterdir()} == wanted
        assert (folder / "additional_chat_templates" / "tool_use.jinja").read_text() == "template"
        assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
        assert not [request for request in asked if "unwanted" in request or "consolidated" in request]
        assert prepared(prepare("org/name", tmp_path, "--revision", COMMIT, HF_ENDPOINT=endpoint)) == folder
        refused = prepare("org/name", tmp_path, "--revision", "v9", HF_ENDPOINT=endpoint)
        assert_refused(refused, "--revision v9: org/name has no such branch, tag or commit")
    # With the hub gone, offline mode still serves what is there, and nothing else.
    assert prepared(prepare("org/name", tmp_path, HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="1")) == folder
    assert_refused(prepare("org/other", tmp_path, HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="1"), "org/other")


def test_hub_models_are_refused_before_their_weights_are_fetched(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    (source / "config.json").write_text('{"model_type": "kimi_k2"}')
    with hub({"org/big": source}) as (endpoint, asked):
        assert_refused(prepare("org/big", tmp_path, HF_ENDPOINT=endpoint), "latent attention")
        assert not [request for request in asked if "safetensors" in request]
        assert_refused(prepare("org/none", tmp_path, HF_ENDPOINT=endpoint), "org/none: no such model")


def test_hub_models_without_safetensors_are_refused(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with hub({"org/old": source}) as (endpoint, _):
        assert_refused(prepare("org/old", tmp_path, HF_ENDPOINT=endpoint), "no safetensors weights")


def test_gguf_file(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_gguf(tiny, path)
    folder = prepared(prepare(str(path), tmp_path))
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype.name for tensor in tensors.values() if tensor.ndim == 2} == {"float16"}, "16-bit stays 16-bit"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages[0]['content'] }}"
    assert settings["eos_token"] == "<|im_end|>"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("The riders 😀").ids) == "The riders 😀"

    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    prompt = [5, 300, 41, 7]
    expected = reference(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(Pipeline(folder, (1, 1)).frame(0, prompt), expected, atol=1e-4, rtol=1e-4)

    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert prepared(prepare(str(path), tmp_path)) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(("keys", "factors"), [({"llama.rope.scaling.factor": 4.0}, None), ({}, [1.0, 2.5] * 4)])
def test_gguf_rope_is_scaled_as_the_file_says(
    tiny: Path, tmp_path: Path, keys: dict[str, float], factors: list[float] | None
) -> None:
    """A factor alone means linear scaling to llama.cpp; the tensor divides each frequency."""
    extra = {} if factors is None else {"rope_freqs.weight": np.array(factors, np.float32)}
    write_gguf(tiny, tmp_path / "small.gguf", keys=keys, extra=extra)
    write_converted(tmp_path / "small.gguf", make(tmp_path / "model"))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf", dtype=torch.float32)
    reference.model.rotary_emb.inv_freq /= torch.tensor(factors or 4.0)
    prompt = [(37 * i) % 512 for i in range(100)]
    expected = reference(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(Pipeline(tmp_path / "model", (1, 1)).frame(0, prompt), expected, atol=1e-4, rtol=1e-4)


def make(folder: Path) -> Path:
    """An empty folder."""
    folder.mkdir()
    return folder


def test_every_end_token_of_a_gguf_file_ends_an_answer(tiny: Path, tmp_path: Path) -> None:
    keys: dict[str, str | int | float] = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 7}
    write_gguf(tiny, tmp_path / "small.gguf", keys=keys)
    write_converted(tmp_path / "small.gguf", make(tmp_path / "model"))
    assert read_end_tokens(tmp_path / "model") == {0, 2, 7}


def test_gguf_files_that_cannot_be_served_as_they_ask_are_refused(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"

    def refused(match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            write_converted(path, tmp_path)

    path.write_bytes(b"junk" * 100)
    refused(r"bad\.gguf: not a GGUF file")
    write_gguf(tiny, path, architecture="gpt2")
    refused("general.architecture 'gpt2' is not supported")
    write_gguf(tiny, path, keys={"llama.logit_scale": 0.5})
    refused(r"bad\.gguf: key llama\.logit_scale is 0\.5")
    write_gguf(tiny, path, keys={"tokenizer.ggml.new_rule": 1})
    refused("key tokenizer.ggml.new_rule is 1")
    write_gguf(tiny, path, extra={"blk.1.attn_sinks.weight": np.ones(4, np.float32)})
    refused("tensor blk.1.attn_sinks.weight is not known")
    whole = path.read_bytes()
    for length in (100, len(whole) // 2, len(whole) - 300):
        path.write_bytes(whole[:length])
        refused(r"bad\.gguf: ")
    assert_refused(prepare(str(path), tmp_path), "bad.gguf: ")


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.whl").write_bytes(b"not the wheel")
    with pytest.raises(ConfigError, match=r"some\.whl: sha256 is .* expected bcc81830"):
        check_hash(tmp_path / "some.whl")


def test_a_link_gives_the_folder_a_path_that_stays(tiny: Path, tmp_path: Path) -> None:
    link = tmp_path / "served"
    for model in (str(tiny), "tiny"):
        folder = prepared(prepare(model, tmp_path, "--link", str(link)))
        assert link.readlink() == folder


def test_a_link_replaces_nothing_but_links(tiny: Path, tmp_path: Path) -> None:
    refused = prepare(str(tiny), tmp_path, "--link", str(tmp_path))
    assert_refused(refused, "--link")
    assert tmp_path.is_dir()

"""The built-in random model and its tokenizer."""

import json
import time
from pathlib import Path

import pytest
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tests.model.pipeline import Pipeline
from workers.prepare.tiny_model import LAYERS, VOCABULARY, write_tiny_model
from workers.shared.model_files.tensor_sizes import layer_bytes


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


def test_same_bytes_every_time(tiny: Path, tmp_path: Path) -> None:
    start = time.monotonic()
    write_tiny_model(tmp_path)
    assert time.monotonic() - start < 10
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in tiny.iterdir()}
    assert sorted(written) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_greedy_text_wanders(tiny: Path) -> None:
    assert len(layer_bytes(tiny)[0]) == LAYERS
    pipeline = Pipeline(tiny, (8, 8), max_len=256)
    texts = [pipeline.greedy(prompt, 100) for prompt in ([5], [300, 7, 41], list(range(60)))]
    for text in texts:
        assert len(set(text)) > 40
    assert len({tuple(text[-20:]) for text in texts}) == 3


def test_probabilities_are_neither_flat_nor_settled(tiny: Path) -> None:
    probabilities = Pipeline(tiny, (16,)).frame(0, [9, 8, 7]).softmax(0)
    entropy = float(-(probabilities * probabilities.log()).sum())
    assert 2.0 < entropy < 5.5
    assert torch.isfinite(probabilities).all()


def test_tokenizer(tiny: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCABULARY
    for text in ("The riders draft.", "naïve 😀 한글\n\t  x", "\x00"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode("The riders").ids) < len("The riders")
    control = tokenizer.encode("<|im_start|>user<|im_end|><|endoftext|>").ids
    assert control[0] == 1
    assert control[-2:] == [2, 0]
    eos = json.loads((tiny / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.id_to_token(eos) == "<|im_end|>"


def test_chat_template(tiny: Path) -> None:
    template = json.loads((tiny / "tokenizer_config.json").read_text())["chat_template"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = ImmutableSandboxedEnvironment().from_string(template).render(messages=messages, add_generation_prompt=True)
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")

"""SmolLM2-135M-Instruct: what `prepare` makes of it. (Its tokens are compared in test_default_model_identity.py.)

The model stays in the ordinary cache (ECHELON_CACHE), so only the first run on a machine downloads and converts it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer

from tests.model.pipeline import Pipeline

TEXT = (
    "In 1969 three people travelled to the Moon. Two of them walked on it, while the third one stayed in orbit "
    "and waited. When they came back to Earth, they had to stay apart from everybody else for three weeks, because"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    command = [sys.executable, "-m", "workers.prepare", "default"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=280, check=True)
    return Path(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_folder(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert len(file.keys()) == 272
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32", "U8"}  # noqa: SIM118
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118


def test_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("In 1984").tokens == ["In", "Ġ", "1", "9", "8", "4"]
    eos = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.id_to_token(eos) == "<|im_end|>"
    for text in (TEXT, "naïve 😀 한글\n\t  x  1234"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_answers_sensibly(folder: Path, tokenizer: Tokenizer) -> None:
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = ImmutableSandboxedEnvironment().from_string(template).render(messages=messages, add_generation_prompt=True)
    tokens = Pipeline(folder, (15, 15)).greedy(tokenizer.encode(text).ids, 10)
    assert tokenizer.decode(tokens[: tokens.index(2)]) == "The capital of France is Paris."

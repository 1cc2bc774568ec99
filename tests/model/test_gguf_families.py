"""Every family that GGUF files are read of, against transformers on the model that the file was made of."""

from pathlib import Path

import pytest
import torch

from tests.model.gguf_families import MADE, write_made
from tests.model.pipeline import Pipeline
from workers.model.checkpoint import Checkpoint
from workers.model.reference import load_reference
from workers.prepare.gguf.configuration import MODEL_TYPES, WITH_EXPERTS
from workers.prepare.gguf.convert import write_converted
from workers.prepare.prepare import check_folder
from workers.prepare.tiny_model import write_tiny_model
from workers.shared.errors import ConfigError

PROMPT = [(37 * i + 11) % 512 for i in range(100)]
ELSEWHERE = {"llama", "qwen2", "qwen3", "gemma3"}  # in test_prepare.py and test_packed_model.py, and with real files


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


def test_no_architecture_is_untested() -> None:
    assert set(MODEL_TYPES) - ELSEWHERE == {made.architecture for made in MADE.values()} - ELSEWHERE
    assert set(WITH_EXPERTS.values()) <= {made.model_type for made in MADE.values()}


@torch.inference_mode()
@pytest.mark.parametrize("name", sorted(MADE))
def test_a_file_computes_what_the_model_does(name: str, tiny: Path, tmp_path: Path) -> None:
    model = write_made(MADE[name], tiny, tmp_path / "made.gguf")
    (tmp_path / "model").mkdir()
    write_converted(tmp_path / "made.gguf", tmp_path / "model")
    folder = check_folder(tmp_path / "model")
    expected = model(torch.tensor([PROMPT])).logits[0, -1]
    if MADE[name].experts:  # which stay packed; test_packed_experts.py has what is computed with them
        assert all(".experts." in packed for packed in Checkpoint(folder).packed)
        found = load_reference(folder, torch.float32)(torch.tensor([PROMPT])).logits[0, -1]
    else:
        found = Pipeline(folder, (1, 3)).frame(0, PROMPT)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_file_that_is_cut_short_is_refused(tiny: Path, tmp_path: Path) -> None:
    write_made(MADE["qwen3moe"], tiny, tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    for kept in (0, 10, 200, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.gguf").write_bytes(content[:kept])
        with pytest.raises(ConfigError, match=r"cut\.gguf: (not a GGUF file, or cut short|ends inside of tensor)"):
            write_converted(tmp_path / "cut.gguf", tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_a_tensor_that_is_missing_is_named(tiny: Path, tmp_path: Path) -> None:
    made = MADE["qwen3moe"]
    write_made(made._replace(keys={**made.keys, "expert_count": 7}), tiny, tmp_path / "made.gguf")
    (tmp_path / "model").mkdir()
    write_converted(tmp_path / "made.gguf", tmp_path / "model")
    with pytest.raises(ConfigError, match=r"experts\.0\.\w+\.weight makes .* but config\.json calls for \[7,"):
        check_folder(tmp_path / "model")

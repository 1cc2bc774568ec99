"""Every family against transformers: tokens of `generate`, logits, any split, and drafts that turn out to be wrong."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.model.conftest import CONFIGS, VOCABULARY, write_model
from tests.model.families import family_configs, untested
from tests.model.pipeline import Pipeline
from workers.prepare.prepare import check_weights
from workers.shared.model_files.architectures import check_supported
from workers.shared.model_files.families import FAMILIES
from workers.shared.model_files.json_file import read_json

FAMILY_CONFIGS = family_configs()
PROMPT = [(37 * i + 11) % VOCABULARY for i in range(21)]
NEW = 12
CHUNK = 8
# transformers computes the whole text in chunks of the delta rule, and we a token at a time: in float32 that is as near
# as these two come, the second with its routers. (Bits do not depend on split and drafts all the same.)
NEAR = {"qwen3_5": 5e-4, "qwen3_5_moe": 2e-3}
SPLITS = [(4,), (1, 3), (2, 1, 1, 0)]


def test_no_family_is_untested() -> None:
    assert not untested({config.model_type for config in CONFIGS.values()})


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_what_a_config_does_not_say_is_applied_or_refused(kind: str) -> None:
    """Fields that transformers fills in count as much as those of the file."""
    filled = AutoConfig.for_model(kind).to_dict()
    check_supported(filled | dict.fromkeys(FAMILIES[kind].assumed, 0))
    assert {name: filled[name] for name in FAMILIES[kind].assumed} == FAMILIES[kind].assumed


@torch.inference_mode()
@pytest.mark.parametrize("name", sorted(FAMILY_CONFIGS))
def test_as_transformers_computes_it(name: str, tmp_path: Path) -> None:
    write_model(FAMILY_CONFIGS[name], tmp_path)
    check_supported(read_json(tmp_path / "config.json"))
    check_weights(tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    text = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    expected = text[0, len(PROMPT) :].tolist()
    assert len(set(expected)) > 2, "the reference says too little to be worth comparing with"

    plain = Pipeline(tmp_path, SPLITS[0], max_len=64).greedy_logits(PROMPT, NEW, CHUNK)
    assert [int(row.argmax()) for row in plain] == expected
    logits = reference(text).logits[0, len(PROMPT) - 1 : -1].float()
    near = NEAR.get(name, 1e-4)
    torch.testing.assert_close(torch.stack(plain), logits, atol=near, rtol=1e-4)
    for split in SPLITS[1:]:
        found = _disturbed(tmp_path, split, expected)
        assert all(torch.equal(one, other) for one, other in zip(plain, found, strict=True)), split


def _disturbed(folder: Path, split: tuple[int, ...], expected: list[int]) -> list[torch.Tensor]:
    """The same logits with another sequence in between, wrong drafts at every position, and what was in the slot."""
    pipeline = Pipeline(folder, split, max_len=64, sequences=2)
    pipeline.greedy(PROMPT[::-1], 20, CHUNK)
    pipeline.frame(0, PROMPT[5:11], sequence=1)
    found = []
    for start in range(0, len(PROMPT), CHUNK):
        logits = pipeline.frame(start, PROMPT[start : start + CHUNK])
    found.append(logits)
    for step, token in enumerate(expected[:-1]):
        position = len(PROMPT) + step
        for ahead in range(3):
            pipeline.frame(position + ahead, [(7 * ahead + step) % VOCABULARY])
        pipeline.frame(6 + step, [step], sequence=1)
        found.append(pipeline.frame(position, [token]))
    return found

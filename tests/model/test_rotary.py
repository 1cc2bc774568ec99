"""The precomputed rotary tables against the module they come from."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workers.model.loader import Target
from workers.model.rotary import RotaryTables


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tables_have_the_bits_of_the_reference(model_folder: Path, dtype: torch.dtype) -> None:
    config = AutoConfig.from_pretrained(model_folder)
    target = Target(model_folder, config, range(6), first=True, last=True)
    kinds = getattr(config, "layer_types", None) or [""] * 6
    tables = RotaryTables(target.rotary, kinds, max_len=200, dtype=dtype, device=torch.device("cpu"))
    module = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype).model.rotary_emb
    for position, end in ((0, 1), (17, 18), (199, 200), (3, 90)):
        for layer, (cos, sin) in enumerate(tables.at(position, end)):
            by_kind = {"layer_type": kinds[layer]} if config.model_type == "gemma3_text" else {}
            expected = module(torch.empty(0, dtype=dtype), torch.arange(position, end)[None], **by_kind)
            assert cos.dtype == expected[0].dtype  # which some families leave in float32
            assert torch.equal(cos, expected[0])
            assert torch.equal(sin, expected[1])


def test_frequencies_stay_float32(model_folder: Path) -> None:
    target = Target(model_folder, AutoConfig.from_pretrained(model_folder), range(1), first=True, last=False)
    target.load(torch.bfloat16, torch.device("cpu"))
    buffers = dict(target.rotary.named_buffers())
    assert any(name.endswith("inv_freq") for name in buffers)
    assert {buffer.dtype for buffer in buffers.values()} == {torch.float32}
    assert not any(buffer.is_meta for buffer in buffers.values())

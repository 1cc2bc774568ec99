"""Which quantised checkpoints are read, in which form their weights are held, and what that takes."""

from typing import Any

import pytest

from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import TensorEntry
from workers.shared.packed.rounding import Rounding
from workers.shared.packed.schemes import finder
from workers.shared.packed.weight import Form, PackedWeight

PARTS = {"words": "w"}


def weight(rows: int, columns: int, bits: int, group: int, *, signed: bool = False) -> PackedWeight:
    return PackedWeight("some", "pack-quantized", (rows, columns), PARTS, 1000, bits, group, signed=signed)


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        ({}, "quant_method is None"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv', which is not read; read are gemm"),
        ({"quant_method": "awq", "bits": 8}, "bits is 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"quant_method": "gptq"}, "bits is missing"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:llm"}, "packing_format is 'auto_round:llm'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format is 'marlin-24'"),
        (
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}},
            "transform_config",
        ),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}, "sparsity_config"),
    ],
)
def test_what_is_not_read_is_refused_by_field(scheme: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        finder({"quantization_config": scheme or {"bits": 4}})
    assert reason in str(caught.value)
    assert "config.json: quantization_config." in str(caught.value)


def test_sparsity_that_is_none_is_read() -> None:
    scheme = {"quant_method": "compressed-tensors", "format": "pack-quantized", "sparsity_config": {"format": "dense"}}
    assert finder({"quantization_config": scheme}) is not None
    assert finder({}) is None


@pytest.mark.parametrize(
    ("packed", "form", "held"),
    [
        (weight(64, 256, 4, 128), Form.PLANES, 64 * (128 + 2 * 4)),
        (weight(65, 256, 4, 32), Form.PLANES, 80 * (128 + 8 * 4)),  # rows are padded to 80
        (weight(64, 192, 4, 192), Form.PLANES, 64 * (96 + 3 * 4)),  # one scale a row: groups of 64
        (weight(64, 256, 8, 64), Form.PLANES, 2 * 64 * (128 + 4 * 4)),
        (weight(64, 256, 8, 256, signed=True), Form.CHANNELS, 64 * 256 + 4 * 64),
        (weight(64, 48, 4, 16), Form.HALF, 64 * 48 * 2),
        (weight(64, 256, 0, 0), Form.HALF, 64 * 256 * 2),
    ],
)
def test_forms(packed: PackedWeight, form: Form, held: int) -> None:
    assert packed.form(products=True) is form
    assert packed.held_bytes(products=True) == held
    assert packed.form(products=False) is Form.UNPACKING
    assert packed.held_bytes(products=False) == packed.nbytes


def test_rounding_takes_projections_and_the_head() -> None:
    def entry(*shape: int, dtype: str = "BF16") -> TensorEntry:
        return TensorEntry(dtype, shape, (0, 2 * shape[0]))

    entries = {
        "model.embed_tokens.weight": entry(100, 576),
        "model.layers.0.self_attn.q_proj.weight": entry(576, 576),
        "model.layers.0.self_attn.q_proj.bias": entry(576),
        "model.layers.0.mlp.down_proj.weight": entry(576, 1536),
        "model.layers.0.mlp.up_proj.weight": entry(1536, 576, dtype="Q4_K"),
        "model.layers.0.mlp.gate.weight": entry(8, 576),
        "model.layers.0.mlp.experts.3.up_proj.weight": entry(64, 576),
        "model.layers.1.mlp.experts.gate_up_proj": entry(8, 128, 96),
        "model.layers.1.mlp.experts.gate_up_proj_bias": entry(8, 96),
        "model.layers.1.self_attn.q_proj.weight": entry(48, 48),
        "model.norm.weight": entry(576),
    }
    found = Rounding("int4", 128).of(entries)
    assert {name: (weight.bits, weight.group) for name, weight in found.items()} == {
        "model.embed_tokens.weight": (8, 576),  # the head, which is tied
        "model.layers.0.self_attn.q_proj.weight": (4, 64),  # 576 is no multiple of 128
        "model.layers.0.mlp.down_proj.weight": (4, 128),
        "model.layers.0.mlp.experts.3.up_proj.weight": (4, 64),
        "model.layers.1.mlp.experts.gate_up_proj": (4, 32),
    }
    together = found["model.layers.1.mlp.experts.gate_up_proj"]
    assert (together.experts, together.shape, together.unpacked_shape) == (8, (128, 96), (8, 128, 96))
    assert together.held_bytes(products=True) == 8 * 128 * (48 + 3 * 4)
    by_column = Rounding("int4", 128).of(entries, by_column=True)["model.layers.1.mlp.experts.gate_up_proj"]
    assert (by_column.group, by_column.shape, by_column.unpacked_shape) == (128, (96, 128), (8, 128, 96))
    assert "lm_head.weight" in Rounding("int8", 64).of(entries | {"lm_head.weight": entry(100, 576)})

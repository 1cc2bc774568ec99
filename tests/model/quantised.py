"""Writes weights in the layouts of quantised checkpoints: by the library that defines one, or from its description."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from torch import Tensor

from workers.shared.model_files.json_file import read_json


class Stored(NamedTuple):
    """A matrix as a checkpoint has it."""

    tensors: dict[str, Tensor]  # by their name within the module
    dense: Tensor  # what they mean, float32 [rows, columns]


def compressed(
    compressor: type[BaseCompressor], weight: Tensor, scale: Tensor, zero: Tensor | None = None, **said: Any
) -> tuple[Stored, dict[str, Any]]:
    """As compressed-tensors writes it, and unpacks it, with what it writes into config.json."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**said, symmetric=zero is None))
    state = {"weight": weight, "weight_scale": scale}
    if zero is not None:
        state["weight_zero_point"] = zero
    packed = {name: tensor.detach() for name, tensor in compressor.compress(state, scheme).items()}
    dense = compressor.decompress(dict(packed), scheme)["weight"].float()
    config = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
        "ignore": ["lm_head"],
    }
    return Stored(packed, dense), config


Written = tuple[Stored, dict[str, Any]]


def _symmetric(bits: int, group: int) -> Callable[[Tensor], Written]:
    def write(weight: Tensor) -> Written:
        scale = weight.unflatten(1, (-1, group or weight.shape[1])).abs().amax(-1) / ((1 << (bits - 1)) - 1)
        how = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
        return compressed(PackedQuantizationCompressor, weight, scale, num_bits=bits, **how)

    return write


def _asymmetric(weight: Tensor) -> Written:
    grouped = weight.unflatten(1, (-1, 32))
    scale = (grouped.amax(-1) - grouped.amin(-1)) / 15
    zero = (-8 - grouped.amin(-1) / scale).round().clamp(-8, 7).to(torch.int8)
    how = {"num_bits": 4, "strategy": "group", "group_size": 32}
    return compressed(PackedQuantizationCompressor, weight, scale, zero, **how)


def _int8(weight: Tensor) -> Written:
    scale = weight.abs().amax(1, keepdim=True) / 127
    stored, config = compressed(NaiveQuantizationCompressor, weight, scale, num_bits=8, strategy="channel")
    stored.tensors["input_scale"] = torch.ones(1)  # how rows would be rounded: not applied
    return stored, config


def _fp8(weight: Tensor) -> Written:
    scale = weight.abs().amax(1, keepdim=True) / 448
    how = {"num_bits": 8, "type": "float", "strategy": "channel"}
    return compressed(NaiveQuantizationCompressor, weight, scale, **how)


def _fp4_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes [rows, columns / 2] of two random codes each, the first in the lower half, and their values."""
    codes = torch.randint(0, 16, weight.shape, dtype=torch.uint8)
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])[(codes & 7).long()]
    return codes[:, ::2] | (codes[:, 1::2] << 4), torch.where(codes < 8, values, -values)


def _nvfp4(weight: Tensor) -> Written:
    packed, values = _fp4_codes(weight)
    scales = (torch.rand(len(weight), weight.shape[1] // 16) * 100 + 100).to(torch.float8_e4m3fn)
    divisor = torch.tensor([4000.0])
    tensors = {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": divisor}
    dense = values * (scales.float() / divisor).repeat_interleave(16, 1)
    return Stored(tensors, dense), {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}


def _mxfp4(weight: Tensor) -> Written:
    packed, values = _fp4_codes(weight)
    exponents = torch.randint(121, 124, (len(weight), weight.shape[1] // 32), dtype=torch.uint8)
    dense = values * torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
    tensors = {"weight_packed": packed, "weight_scale": exponents}
    return Stored(tensors, dense), {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}


def _fp8_blocks(weight: Tensor) -> Written:
    """As DeepSeek and Qwen publish it: a scale for each block, of 32 by 48 here."""
    rows, columns = weight.shape
    down, across = -(-rows // 32), -(-columns // 48)
    scale = torch.rand(down, across) * 0.01 + 0.01
    each = scale.repeat_interleave(32, 0)[:rows].repeat_interleave(48, 1)[:, :columns]
    values = (weight / each).clamp(-448, 448).to(torch.float8_e4m3fn)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 48]}
    return Stored({"weight": values, "weight_scale_inv": scale}, values.float() * each), config


def _words(values: Tensor, bits: int) -> Tensor:
    """int [..., n] to int32 [..., n * bits / 32], the first value in the lowest bits."""
    apart = values.long().unflatten(-1, (-1, 32 // bits))
    words = (apart << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _grouped(weight: Tensor, bits: int, group: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values [rows, columns], scales and zeros [rows, groups], and what they mean; `group` of each column."""
    rows, groups = len(weight), int(group.max()) + 1
    scales, zeros = torch.rand(rows, groups) * 0.02 + 0.01, torch.randint(1, 1 << bits, (rows, groups))
    scales = (scales * 16 / (1 << bits)).half()
    values = torch.randint(0, 1 << bits, weight.shape)
    return values, scales, zeros, (values - zeros[:, group]) * scales.float()[:, group]


def _awq(weight: Tensor) -> Written:
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # four bits i of a word belong to this row of eight
    values, scales, zeros, dense = _grouped(weight, 4, torch.arange(weight.shape[1]) // 64)

    def packed(rows: Tensor) -> Tensor:
        return _words(rows.T.unflatten(1, (-1, 8))[..., order].flatten(1), 4)

    tensors = {"qweight": packed(values), "qzeros": packed(zeros), "scales": scales.T.contiguous()}
    config = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
    return Stored(tensors, dense), config


def _gptq(bits: int, act_order: bool, version: str = "gptq") -> Callable[[Tensor], Written]:
    def write(weight: Tensor) -> Written:
        group = torch.arange(weight.shape[1]) // 32
        if act_order:
            group = group[torch.randperm(len(group))]
        values, scales, zeros, dense = _grouped(weight, bits, group)
        tensors = {
            "qweight": _words(values.T.unflatten(0, (-1, 32 // bits)).transpose(1, 2), bits)[..., 0],
            "qzeros": _words(zeros.T - int(version == "gptq"), bits),
            "scales": scales.T.contiguous(),
            "g_idx": group.int(),
        }
        config = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": act_order, "sym": False}
        return Stored(tensors, dense), config | {"checkpoint_format": version}

    return write


LAYOUTS: dict[str, Callable[[Tensor], Written]] = {
    "int4 in groups of 32": _symmetric(4, 32),
    "int4 in groups of 64": _symmetric(4, 64),
    "int4 by channel": _symmetric(4, 0),
    "int4 asymmetric": _asymmetric,
    "int8 in groups, packed": _symmetric(8, 32),
    "int8 by channel, packed": _symmetric(8, 0),
    "int8 by channel": _int8,
    "fp8 by channel": _fp8,
    "fp8 in blocks": _fp8_blocks,
    "nvfp4": _nvfp4,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq(4, act_order=False),
    "gptq act-order": _gptq(4, act_order=True),
    "gptq int8, v2": _gptq(8, act_order=False, version="gptq_v2"),
}


def write_quantised(source: Path, folder: Path, layout: str) -> dict[str, Tensor]:
    """The model in `source` with its projections in a layout; returns all weights as float32, by name."""
    folder.mkdir()
    tensors, dense = {}, {}
    config = read_json(source / "config.json")
    for name, tensor in stored_tensors(source).items():
        if "_proj" not in name or name.endswith("bias"):
            tensors[name] = dense[name] = tensor
            continue
        torch.manual_seed(len(tensors))
        stored, config["quantization_config"] = LAYOUTS[layout](tensor)
        module = name.removesuffix("weight")
        tensors |= {module + part: value.contiguous() for part, value in stored.tensors.items()}
        dense[name] = stored.dense
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    for path in source.glob("*.json"):
        if path.name not in ("config.json", "model.safetensors.index.json"):
            shutil.copyfile(path, folder / path.name)
    return dense


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model folder."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}

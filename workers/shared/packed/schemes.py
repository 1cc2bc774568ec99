"""Which `quantization_config` of a config.json is read, and by what; torch-free."""

from collections.abc import Callable, Mapping
from typing import Any

from workers.shared.errors import ConfigError
from workers.shared.packed.compressed import find_compressed, find_mxfp4
from workers.shared.packed.entries import Entries
from workers.shared.packed.integers import find_awq, find_gptq
from workers.shared.packed.weight import PackedWeight

Finder = Callable[[Entries, Mapping[str, Any]], dict[str, PackedWeight]]

# Describe how activations or the cache are rounded. That is not done here, and results are only nearer to the original.
UNUSED_PARTS = ("input_scale", "input_zero_point", "input_global_scale", "k_scale", "v_scale", "weight_shape")

_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)
_AUTO_ROUND = {"auto_round:auto_gptq": find_gptq, "auto_round:auto_awq": find_awq}


def finder(config: Mapping[str, Any]) -> Finder | None:
    """What finds the packed weights of a checkpoint with this config.json; None where nothing is quantised.

    Raises `ConfigError` naming the method or field that is not read.
    """
    scheme = config.get("quantization_config")
    if not scheme:
        return None
    method = str(scheme.get("quant_method", "")).replace("_", "-")
    if method not in _METHODS:
        raise _refused("quant_method", scheme.get("quant_method"), _METHODS)
    return _METHODS[method](scheme)


def _awq(scheme: Mapping[str, Any]) -> Finder:
    _only(scheme, "version", "gemm")
    _only(scheme, "bits", 4)
    return find_awq


def _gptq(scheme: Mapping[str, Any]) -> Finder:
    _only(scheme, "checkpoint_format", "gptq", "gptq_v2")
    if "bits" not in scheme:
        raise ConfigError("config.json: quantization_config.bits is missing")
    return find_gptq


def _auto_round(scheme: Mapping[str, Any]) -> Finder:
    packing = scheme.get("packing_format")
    if packing not in _AUTO_ROUND:
        raise _refused("packing_format", packing, _AUTO_ROUND)
    _only(scheme, "data_type", "int")
    return _AUTO_ROUND[packing]


def _fp8(scheme: Mapping[str, Any]) -> Finder:
    _only(scheme, "fmt", "e4m3")
    return find_compressed


def _compressed_tensors(scheme: Mapping[str, Any]) -> Finder:
    _only(scheme, "format", *_FORMATS)
    for field in ("sparsity_config", "transform_config"):
        said = scheme.get(field) or {}
        if said and said.get("format", "") != "dense" and any(said.values()):
            raise ConfigError(f"config.json: quantization_config.{field} is {said!r}, which is not supported")
    return find_compressed


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Finder]] = {
    "auto-round": _auto_round,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "gptq": _gptq,
    "mxfp4": lambda scheme: find_mxfp4,
}


def _only(scheme: Mapping[str, Any], field: str, *known: Any) -> None:
    """A field that is missing has the first of these values."""
    value = scheme.get(field)
    found = value.lower() if isinstance(value, str) else value
    if found is not None and found not in known:
        raise _refused(field, value, known)


def _refused(field: str, value: Any, known: Any) -> ConfigError:
    read = ", ".join(map(str, known))
    return ConfigError(f"config.json: quantization_config.{field} is {value!r}, which is not read; read are {read}")

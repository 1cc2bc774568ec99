"""The authors' checkpoint file, format v11: one `torch.save` of `state_dict` and `config`."""

from pathlib import Path
from typing import Any

import msgspec

from speculation.decisions.features import auto_anchors, check_fixed_stages
from speculation.pdm.archive import load_archive
from speculation.pdm.checkpoint import fill_module
from speculation.pdm.config import ModuleConfig
from speculation.pdm.module import DraftModule
from speculation.pdm.target import read_final_norm, read_target_config
from speculation.pdm.vocabulary import draft_ids
from workers.shared.errors import ConfigError

_VERSION = 11


class _Config(msgspec.Struct):
    """The entries of the file's `config` that decide what the module is; the rest is provenance."""

    hidden_size: int
    vocab_size: int
    num_stages: int
    num_spec_layers: int = 1
    version: int = 0
    draft_vocab_size: int | None = None
    draft_token_ids: list[int] | None = None
    num_aggr_types: int | None = None
    aggr_feature_bound: list[int] | None = None
    num_layers: int | None = None  # of the target
    stage_layers: list[int] | str | None = None  # layers a stage; as text, with semicolons between


class _File(msgspec.Struct):
    state_dict: dict[str, Any]
    config: dict[str, Any]


def read_authors(path: Path, target: Path, target_name: str) -> DraftModule:
    """Loads a v11 file for the target in the model folder `target`; the module is float32 on the CPU.

    The file names no target reliably, so dimensions alone are compared. Raises `ConfigError` where they differ, for
    another version, and for a target whose layers are not supported.
    """
    file = load_archive(path, _File, "draft module file of the authors' format")
    try:
        config = msgspec.convert(file.config, _Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: config: {error}") from error
    if config.version not in (0, _VERSION):
        raise ConfigError(f"{path}: format version {config.version}; only {_VERSION} can be read")
    target_config = read_target_config(target)
    layers = target_config.num_hidden_layers
    if (config.hidden_size, config.vocab_size) != (target_config.hidden_size, target_config.vocab_size):
        raise ConfigError(
            f"{path}: made for hidden size {config.hidden_size} and vocabulary {config.vocab_size}, but "
            f"{target_name!r} has {target_config.hidden_size} and {target_config.vocab_size}"
        )
    anchors = tuple(config.aggr_feature_bound or auto_anchors(layers, config.num_stages))
    check_fixed_stages(anchors, config.num_stages)
    ids = None if config.draft_token_ids is None else draft_ids(config.draft_token_ids, config.vocab_size)
    for name, said, found in (
        ("num_aggr_types", config.num_aggr_types, len(anchors)),
        ("draft_vocab_size", config.draft_vocab_size, config.vocab_size if ids is None else len(ids)),
        ("num_layers", config.num_layers, layers),
    ):
        if said not in (None, found):
            raise ConfigError(f"{path}: {name} is {said}, but the rest of the file and the target have {found}")
    _check_stage_layers(config, layers, path)
    module_config = ModuleConfig(
        target=target_name,
        target_layers=layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        anchors=anchors,
        layers=config.num_spec_layers,
        layer_type="qwen3",
        draft_token_ids=ids,
        stages=(config.num_stages,),
    )
    module = DraftModule(module_config, target_config, read_final_norm(target, target_config))
    fill_module(module, file.state_dict, str(path))
    return module


def _check_stage_layers(config: _Config, layers: int, path: Path) -> None:
    """Raises `ConfigError` where the split that the file was trained for is no split of the target's `layers`."""
    said = config.stage_layers
    try:
        split = [int(count) for count in (said.split(";") if isinstance(said, str) else said or ())]
    except ValueError:
        split = [0]
    if said is not None and (len(split) != config.num_stages or min(split) < 1 or sum(split) != layers):
        raise ConfigError(
            f"{path}: stage_layers is {said!r}, which does not divide {layers} layers among {config.num_stages} stages"
        )

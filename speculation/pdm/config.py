"""What a draft module is: the part of its checkpoint that is not weights."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from speculation.decisions.features import RowRule, check_anchors
from workers.shared.errors import ConfigError

LayerType = Literal["target", "qwen3"]
HeadType = Literal["own", "target"]


class ModuleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape of a draft module or an exit head, which its `rows` tell apart, and the target that it was trained for.

    `layer_type` is "target" for the target's own decoder layer, or "qwen3" for the layer of the authors' checkpoints,
    which normalises queries and keys whatever the target does. `head` is "own" for a trained draft head, or "target"
    for the target's frozen rows, which the checkpoint does not repeat. The tower's last layers may likewise be
    layers of the target, `frozen_layers`: depth then costs a checkpoint nothing.
    """

    target: str  # name of the target model
    target_layers: int
    hidden_size: int
    vocab_size: int
    anchors: tuple[int, ...]  # hidden-state indices, the first is the embedding
    layers: int  # an exit head may have none
    rows: RowRule = RowRule.IN_FLIGHT
    layer_type: LayerType = "target"
    head: HeadType = "own"
    frozen_layers: tuple[int, ...] = ()  # target layers, in order
    layer_kinds: tuple[str, ...] = ()  # rotation of each layer, in the target's words; none: as full attention
    draft_token_ids: tuple[int, ...] | None = None  # ascending target ids; None is the whole vocabulary
    stages: tuple[int, ...] = ()  # numbers of stages that it was trained for
    sha256: str | None = None  # in a file: of the weights beside it, see `integrity.checksum`
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        check_anchors(self.anchors, self.target_layers)
        least = 0 if self.rows is RowRule.EXIT else 1
        if self.layers < least:
            raise ConfigError(f"a draft module with {self.layers} layers: it needs at least {least}")
        if self.rows is RowRule.EXIT and len(self.anchors) < 2:
            raise ConfigError("an exit head needs an exit: anchors such as 0,8")
        if len(self.frozen_layers) > self.layers or not all(0 <= i < self.target_layers for i in self.frozen_layers):
            raise ConfigError(f"frozen layers {list(self.frozen_layers)}: the target has 0..{self.target_layers - 1}")
        if self.layer_kinds and len(self.layer_kinds) != self.layers:
            raise ConfigError(
                f"layer_kinds names {len(self.layer_kinds)} layers, but the draft module has {self.layers}"
            )
        if self.frozen_layers and self.layer_type != "target":
            raise ConfigError("frozen layers need layer type 'target'")

    @property
    def own_layers(self) -> int:
        """Tower layers with weights of the module's own; they come first."""
        return self.layers - len(self.frozen_layers)

    @property
    def draft_vocab_size(self) -> int:
        """Rows of the draft head."""
        return self.vocab_size if self.draft_token_ids is None else len(self.draft_token_ids)


def check_target(config: ModuleConfig, name: str, target_config: Any) -> None:
    """Raises `ConfigError`, with both names, unless the module belongs to the target called `name`.

    `target_config` is the target's Hugging Face text configuration.
    """
    found = {
        "layers": (config.target_layers, target_config.num_hidden_layers),
        "hidden size": (config.hidden_size, target_config.hidden_size),
        "vocabulary": (config.vocab_size, target_config.vocab_size),
    }
    wrong = [f"{what} {module} against {target}" for what, (module, target) in found.items() if module != target]
    if config.target == name and not wrong:
        return
    reason = f" ({', '.join(wrong)})" if wrong else ""
    raise ConfigError(
        f"the draft module was trained for {config.target!r}, not for {name!r}{reason}; "
        f"choose a module of {name!r}, or another drafter"
    )


def read_config(folder: Path) -> ModuleConfig:
    """The configuration of a draft module folder; raises `ConfigError` with the path of the offending field."""
    try:
        return msgspec.json.decode((folder / "config.json").read_bytes(), type=ModuleConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}; --draft-module takes a draft module folder") from error

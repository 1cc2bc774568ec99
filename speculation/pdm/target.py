"""The few tensors of the target that a draft module needs, read without loading the rest."""

from pathlib import Path

from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from workers.model.checkpoint import Checkpoint
from workers.shared.errors import ConfigError
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import EMBEDDING, HEAD, tensor_files


def read_target_config(folder: Path) -> PreTrainedConfig:
    """The text configuration of a model folder; raises `ConfigError` where there is none."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: no usable config.json: {error}") from error
    return config.get_text_config()


def target_name(folder: Path) -> str:
    """What the model folder calls itself: `_name_or_path` of its config.json, or else the folder's name."""
    name = str(read_json(folder / "config.json").get("_name_or_path") or "")
    # transformers writes there where a model was loaded from, which may be a folder that no longer exists.
    return folder.resolve().name if not name or Path(name).is_absolute() else name


def read_tensor(folder: Path, name: str) -> Tensor:
    """One tensor of a model folder, unpacked, in its stored dtype; raises `ConfigError` where no file has it."""
    return Checkpoint(folder).tensor(name)


def read_head(folder: Path) -> Tensor:
    """The LM head `[V, H]`; the embedding where the two are tied."""
    return read_tensor(folder, HEAD if HEAD in tensor_files(folder) else EMBEDDING)

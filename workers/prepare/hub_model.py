"""Fetches a model from the Hugging Face hub, or from whatever HF_ENDPOINT names."""

from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RevisionNotFoundError,
)

from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported, text_config
from workers.shared.model_files.draft_heads import no_model, recognise
from workers.shared.model_files.json_file import read_json

_WANTED = ["*.json", "*.safetensors", "*.jinja"]
# Subfolders hold other formats, and "consolidated" files the same weights under the names of another library.
_UNWANTED = ["*/*.json", "*/*.safetensors", "consolidated*"]
_OF_HEADS = ["config.json", "model.safetensors", "pytorch_model.bin"]


def fetch(name: str, revision: str | None = None, *, heads: bool = False) -> Path:
    """The local snapshot of ORG/NAME in the hub's own cache, completed where needed.

    It is the newest revision unless one is given. With `heads` it may be a draft head.
    HF_HUB_OFFLINE=1 uses what is there. Raises `ConfigError`, before any weights are fetched where the architecture
    is not supported.
    """
    try:
        said = read_json(Path(hf_hub_download(name, "config.json", revision=revision)))
        if recognise(said, name) is not None:
            if not heads:
                raise ConfigError(no_model(name))
            return Path(snapshot_download(name, revision=revision, allow_patterns=_OF_HEADS))
        check_supported(text_config(said))
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except RevisionNotFoundError as error:
        raise ConfigError(f"--revision {revision}: {name} has no such branch, tag or commit on the hub") from error
    except GatedRepoError as error:
        raise ConfigError(f"{name}: accept its licence on the hub, then set HF_TOKEN") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 404):
            raise ConfigError(f"{name}: no such model with a config.json on the hub, or it is private") from error
        raise ConfigError(f"{name}: the hub answered with HTTP status {status}; try again later") from error
    except (OSError, EntryNotFoundError, HFValidationError) as error:
        raise ConfigError(f"{name}: cannot be fetched: {' '.join(str(error).split())}") from error
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{name}: has no safetensors weights; only that format is read")
    return folder

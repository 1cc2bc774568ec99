"""The one configuration every process of an engine reads: written by the launcher, or by hand for containers."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from workers.shared.drafters import DRAFTERS
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")
Dtype = Literal["float32", "bfloat16", "float16"]
TransportName = Literal["zmq", "gloo", "nccl", "inprocess"]


class Endpoints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ZeroMQ addresses. Rank 0 binds `bus`, `results` and `control`; stage i binds `data[i]`."""

    bus: str
    results: str
    control: tuple[str, ...]  # one a stage
    data: tuple[str, ...]  # one a stage; the first is unused
    rendezvous: str = ""  # torch.distributed init method, for the gloo and nccl transports
    listen: str | None = None  # host that replaces the one of tcp endpoints when binding


class DrafterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which drafter runs, and its settings."""

    name: str = "ngram"  # of a row in `DRAFTERS`
    module: str | None = None  # folder, or the authors' .pt file, of the draft module, for `pdm`
    module_target: str = ""  # the name under which the module knows its target
    draft_model: str | None = None  # a prepared model folder with the target's vocabulary, for `model`
    device: str = "cpu"  # of the draft module or model
    threads: int = 1  # of the draft module or model on a CPU
    ngram_max: int = 6  # longest suffix looked up
    ngram_min: int = 1
    script: str | None = None  # JSON file of recorded runs, for `scripted`
    num_speculative_tokens: int = 0  # drafts a frame: draft-then-verify; 0: one token a frame, frames in every stage
    always: bool = False  # draft even while it loses against plain decoding
    scripted_acceptance: float | None = None  # rehearsal: the sampler takes the draft with this probability

    def __post_init__(self) -> None:
        """Raises `ValueError`, which a decoder reports with the field's path, for a name that is in no row."""
        if self.name not in DRAFTERS:
            raise ValueError(f"unknown drafter {self.name!r}: expected one of {', '.join(DRAFTERS)}")


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the speculation rank and the stage workers need to know."""

    model: str  # a prepared model folder: config.json, *.safetensors, tokenizer.json
    split: tuple[int, ...]  # decoder layers a stage; the last may be 0 (head only)
    endpoints: Endpoints
    dtype: Dtype = "float32"
    devices: tuple[str, ...] = ("cpu",)  # one a stage, or one for all
    max_model_len: int = 2048
    sequences: int = 2  # KV slots: prompts whose beginnings are kept for the next request
    transport: TransportName = "zmq"
    threads: int = 1  # a CPU stage
    prefill_chunk: int = 128  # tokens
    delta: int = 0  # credits beyond one a stage
    drafter: DrafterConfig = DrafterConfig()
    hollow_stages: bool = False  # stages take their emulated time and compute nothing: the text means nothing
    emulate: Emulation = Emulation()
    stall_timeout: float = 20.0  # seconds without an answer after which a stage is taken for hung

    @property
    def rehearsal(self) -> bool:
        """Whether the text means nothing: drafts are accepted by chance, or nothing is computed."""
        return self.hollow_stages or self.drafter.scripted_acceptance is not None

    @property
    def stages(self) -> int:
        """Number of stages, n."""
        return len(self.split)

    def layers(self, stage: int) -> range:
        """Global indices of the decoder layers that `stage` holds."""
        first = sum(self.split[:stage])
        return range(first, first + self.split[stage])

    def device(self, stage: int) -> str:
        """Device of `stage`."""
        return self.devices[stage % len(self.devices)]


def load_config(path: Path) -> EngineConfig:
    """Reads a `.json` or `.toml` engine configuration; raises `ConfigError` with the path of the offending field."""
    decoder: Any = msgspec.toml if path.suffix == ".toml" else msgspec.json
    try:
        config: EngineConfig = decoder.decode(path.read_bytes(), type=EngineConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def save_config(config: EngineConfig, path: Path) -> None:
    """Writes `config` as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(config)))

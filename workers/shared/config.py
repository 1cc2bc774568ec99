"""The one configuration every process of an engine reads: written by the launcher, or by `echelon plan`."""

from pathlib import Path

import msgspec

from workers.shared.drafters import DrafterName
from workers.shared.errors import ConfigError
from workers.shared.frames import Shape, scratch_of, shapes_of
from workers.shared.options.engine import DrafterFields, Dtype, EngineFields, TransportName, rounding_of
from workers.shared.options.sources import decode
from workers.shared.packed.rounding import Rounding

CHOSEN = (1, 2, 4, 8)  # tokens of a frame, and drafts for a position, where these are chosen
MEASURED_ROWS = (1, 2, 4, 8, 16)  # of frames whose times a calibration finds out

__all__ = [
    "DrafterConfig",
    "Dtype",
    "Endpoints",
    "EngineConfig",
    "TransportName",
    "load_config",
    "save_config",
]


class Endpoints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ZeroMQ addresses. Rank 0 binds `bus`, `results` and `control`; stage i binds `data[i]`."""

    bus: str
    results: str
    control: tuple[str, ...]  # one a stage
    data: tuple[str, ...]  # one a stage; the first is unused
    rendezvous: str = ""  # torch.distributed init method, for the gloo and nccl transports
    listen: str | None = None  # host that replaces the one of tcp endpoints when binding
    cascade: str = ""  # of the processes of a cascade, to which their numbers are added: links, on rank 0's host
    token: str = ""  # the group's secret; where there is one, ZeroMQ connections over tcp are encrypted


class DrafterConfig(DrafterFields, frozen=True, forbid_unknown_fields=True):
    """Which drafter runs, and its settings."""

    name: DrafterName = "ngram"
    module: str | None = None  # folder, or the authors' .pt file, of the draft module, for `pdm`
    module_target: str = ""  # the name under which the module knows its target
    draft_model: str | None = None  # a prepared model folder with the target's vocabulary, for `model`
    device: str = "cpu"  # of the draft module or model
    cascade: tuple[str, ...] = ()  # prepared model folders with the target's vocabulary, from the smallest on
    cascade_devices: tuple[str, ...] = ()  # one a model of the cascade, or one for all; none: `device`

    def cascade_device(self, model: int) -> str:
        """Device of model number `model` of the cascade."""
        return self.cascade_devices[model % len(self.cascade_devices)] if self.cascade_devices else self.device


class EngineConfig(EngineFields, frozen=True, forbid_unknown_fields=True):
    """Everything the speculation rank and the stage workers need to know."""

    model: str  # a prepared model folder: config.json, *.safetensors, tokenizer.json
    split: tuple[int, ...]  # decoder layers a stage; the last may be 0 (head only)
    endpoints: Endpoints
    max_model_len: int  # positions a KV slot
    dtype: Dtype = "float32"
    devices: tuple[str, ...] = ("cpu",)  # one a stage, or one for all
    transport: TransportName = "zmq"
    drafter: DrafterConfig = DrafterConfig()

    @property
    def rehearsal(self) -> bool:
        """Whether the text means nothing: drafts are accepted by chance, or nothing is computed."""
        return self.hollow_stages or self.drafter.scripted_acceptance is not None

    @property
    def stages(self) -> int:
        """Number of stages, n."""
        return len(self.split)

    @property
    def rounding(self) -> Rounding | None:
        """How weights are rounded when they are loaded."""
        return rounding_of(self)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """What decode frames may hold, the least first; of several it is decided for each request.

        What is chosen has no more rows than are measured, for nobody knows what more of them cost.
        """
        drafts = self.drafter.num_speculative_tokens
        widths = (drafts + 1,) if drafts else self._numbers(self.tokens_per_frame)
        return shapes_of(widths, self._numbers(self.tree_width), MEASURED_ROWS[-1])

    def _numbers(self, asked: int | str) -> tuple[int, ...]:
        if isinstance(asked, int):
            return (asked,)
        return CHOSEN[:1] if self.exact else CHOSEN

    @property
    def frame_width(self) -> int:
        """Most tokens of a frame that may turn out to be wrong."""
        return max(shape.width for shape in self.shapes)

    @property
    def breadth(self) -> int:
        """Most drafts for one position."""
        return max(shape.breadth for shape in self.shapes)

    @property
    def recorded_widths(self) -> tuple[int, ...]:
        """Tokens of the frames that are worth recording on a GPU, while nothing is known of the text."""
        return tuple(dict.fromkeys((1, *(shape.width for shape in self.shapes))))

    @property
    def tokens_in_flight(self) -> int:
        """Most positions of one sequence whose frames are under way, prompts aside."""
        return self.frames_in_flight * self.frame_width

    @property
    def frames_in_flight(self) -> int:
        """Most of one sequence that are under way, prompts aside."""
        return 1 if self.drafter.num_speculative_tokens else self.stages + self.delta

    @property
    def scratch(self) -> int:
        """Rows of keys and values, of a KV slot and layer, for drafts that share their position with a likelier one."""
        return scratch_of(self.shapes, self.frames_in_flight)

    @property
    def kv_positions(self) -> int:
        """For which all KV slots together have memory."""
        return self.max_total_tokens or self.max_num_seqs * self.max_model_len

    def layers(self, stage: int) -> range:
        """Global indices of the decoder layers that `stage` holds."""
        first = sum(self.split[:stage])
        return range(first, first + self.split[stage])

    def device(self, stage: int) -> str:
        """Device of `stage`."""
        return self.devices[stage % len(self.devices)]


def load_config(path: Path) -> EngineConfig:
    """Reads a `.json` or `.toml` engine configuration; raises `ConfigError` with the path of the offending field."""
    try:
        return msgspec.convert(decode(path), type=EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error


def save_config(config: EngineConfig, path: Path) -> None:
    """Writes `config` as JSON, for this user alone: there may be a token in it."""
    write_private(path, config)


def write_private(path: Path, content: msgspec.Struct) -> None:
    """Writes a struct as JSON for this user alone; whoever reads meanwhile sees the old file or the new one."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
    fresh.replace(path)

"""From command-line options to the configuration of an engine. Pure: reads nothing, starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from workers.decisions.split import balance, parse_split
from workers.shared.config import DrafterConfig, Dtype, Endpoints, EngineConfig, TransportName
from workers.shared.drafters import DRAFTERS
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError

DEFAULT_STAGES = 2
DEFAULT_MAX_MODEL_LEN = 8192  # a KV cache for more is only reserved when asked for


@dataclass(frozen=True)
class ModelSize:
    """What decides how a prepared model folder is split."""

    folder: Path
    layer_bytes: Sequence[int]
    head_bytes: int
    max_positions: int


@dataclass(frozen=True)
class DrafterOptions:
    """The drafter's part of `echelon serve`'s options."""

    name: str = "auto"
    module: Path | None = None
    model: str | None = None  # as MODEL: not yet prepared
    num_speculative_tokens: int = 0
    device: str = "auto"
    threads: int = 1
    ngram_max: int = 6
    ngram_min: int = 1
    script: Path | None = None
    acceptance: float | None = None
    always: bool = False


@dataclass(frozen=True)
class EngineOptions:
    """The engine half of `echelon serve`'s options."""

    stages: int | None = None
    split: str | None = None
    device: str = "cpu"
    dtype: Dtype | Literal["auto"] = "auto"
    max_model_len: int | None = None
    transport: TransportName | Literal["auto"] = "auto"
    threads: int = 1
    prefill_chunk: int = 128
    sequences: int = 2
    delta: int = 0
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    hollow_stages: bool = False
    emulate: Emulation = field(default_factory=Emulation)
    stall_timeout: float = 20.0


def plan_engine(options: EngineOptions, model: ModelSize, endpoints: Endpoints) -> EngineConfig:
    """The configuration that `options` mean for `model`; raises `ConfigError` naming the flag that is wrong."""
    split = choose_split(options, model)
    devices = choose_devices(options.device, len(split), options.transport)
    on_cpu = devices[0] == "cpu"
    transport: TransportName
    if options.transport != "auto":
        transport = options.transport
    elif on_cpu:
        transport = "zmq"
    else:
        transport = "nccl" if len(set(devices)) == len(split) else "inprocess"
    _require(transport != "nccl" or not on_cpu, "--transport nccl needs --device cuda; on CPUs use zmq or gloo")
    _require(options.prefill_chunk >= 1, "--prefill-chunk must be at least 1 token")
    _require(options.sequences >= 1, "--sequences must be at least 1")
    _require(options.delta >= 0, "--delta must be 0 or more")
    _require(options.threads >= 1, "--threads must be at least 1")
    _require(
        not options.hollow_stages or (on_cpu and DRAFTERS[options.drafter.name].reads == "nothing"),
        "--hollow-stages is for --device cpu and --drafter none or scripted: there is nothing to draft from",
    )
    options.emulate.check()
    _require(options.stall_timeout > 0, "--stall-timeout must be more than 0 seconds")
    return EngineConfig(
        model=str(model.folder),
        split=split,
        endpoints=endpoints,
        dtype=options.dtype if options.dtype != "auto" else ("float32" if on_cpu else "bfloat16"),
        devices=devices,
        max_model_len=choose_max_model_len(options.max_model_len, model.max_positions),
        transport=transport,
        threads=options.threads,
        prefill_chunk=options.prefill_chunk,
        sequences=options.sequences,
        delta=options.delta,
        drafter=options.drafter,
        hollow_stages=options.hollow_stages,
        emulate=options.emulate,
        stall_timeout=options.stall_timeout,
    )


def plan_over_network(options: EngineOptions, model: ModelSize, hosts: Sequence[str], port: int) -> EngineConfig:
    """As `plan_engine`, for processes that are started one by one: rank 0 and then the stages run on `hosts`.

    Devices are named as each stage's own host or container sees them.
    """
    endpoints = network_endpoints(hosts, len(choose_split(options, model)), port)
    if options.transport == "auto":
        options = replace(options, transport="zmq" if options.device == "cpu" else "nccl")
    _require(options.transport != "inprocess", "--transport inprocess has no processes to start one by one")
    return plan_engine(options, model, endpoints)


def choose_split(options: EngineOptions, model: ModelSize) -> tuple[int, ...]:
    """Layers a stage: as given, or balanced over as many stages as asked for."""
    if options.split is None:
        return balance(model.layer_bytes, model.head_bytes, options.stages or DEFAULT_STAGES)
    split = parse_split(options.split, len(model.layer_bytes))
    _require(
        options.stages in (None, len(split)),
        f"--split {options.split} has {len(split)} stages, but --stages is {options.stages}",
    )
    return split


def choose_devices(device: str, stages: int, transport: str) -> tuple[str, ...]:
    """One device a stage, or one for all of them."""
    if device == "cuda":
        return ("cuda:0",) if transport == "inprocess" else tuple(f"cuda:{i}" for i in range(stages))
    devices = tuple(part.strip() for part in device.split(","))
    for name in devices:
        kind, _, number = name.partition(":")
        _require(
            name == "cpu" or (kind == "cuda" and number.isdecimal()),
            f"--device {device!r}: expected cpu, cuda, or a list such as cuda:0,cuda:1",
        )
    _require(
        len(devices) in (1, stages),
        f"--device names {len(devices)} devices for {stages} stages; give one, or one a stage",
    )
    _require(
        len({name.partition(":")[0] for name in devices}) == 1,
        f"--device {device!r}: stages on CPUs and on GPUs cannot be mixed",
    )
    return devices


def choose_max_model_len(asked: int | None, max_positions: int) -> int:
    """Positions to keep keys and values for."""
    if asked is None:
        return min(max_positions, DEFAULT_MAX_MODEL_LEN)
    _require(
        2 <= asked <= max_positions, f"--max-model-len must be 2..{max_positions}, the most this model was made for"
    )
    return asked


def choose_drafter_config(options: DrafterOptions, target: str, shipped: Path | None, device: str) -> DrafterConfig:
    """Checks the drafter's options against each other and settles `auto`.

    `target` is the model's name, `shipped` the module that comes with Echelon for it, `device` that of the stages.
    """
    module = options.module or shipped
    if options.name != "auto":
        name = options.name
    elif options.model is not None:
        name = "model"
    else:  # a module cannot fill frames of several tokens
        name = "ngram" if module is None or options.num_speculative_tokens else "pdm+ngram"
    row = DRAFTERS[name]
    uses_module = row.needs_module
    _require(1 <= options.ngram_min <= options.ngram_max, "--ngram-min must be at least 1 and at most --ngram-max")
    _require(options.threads >= 1, "--draft-threads must be at least 1")
    _require(options.num_speculative_tokens >= 0, "--num-speculative-tokens must be 0 or more")
    _require(
        row.needs_model == (options.model is not None),
        "--drafter model and --draft-model MODEL belong together: a small model with the vocabulary of the target",
    )
    _require(
        options.acceptance is None or 0 <= options.acceptance <= 1,
        "--scripted-acceptance must be a probability, 0 to 1",
    )
    scripted = {"--script": options.script, "--scripted-acceptance": options.acceptance}
    given = [flag for flag, value in scripted.items() if value is not None]
    _require(row.needs_script or not given, f"{' and '.join(given)} is for --drafter scripted")
    _require(
        not row.needs_script or len(given) == 1, "--drafter scripted needs --script FILE or --scripted-acceptance P"
    )
    _require(uses_module or options.module is None, f"--draft-module is for --drafter pdm or pdm+ngram, not {name}")
    _require(
        not uses_module or module is not None,
        f"--drafter {name} needs --draft-module PATH: no module comes with Echelon for {target}",
    )
    return DrafterConfig(
        name,
        module=str(module.resolve()) if uses_module and module is not None else None,
        module_target=target,
        draft_model=options.model,
        num_speculative_tokens=options.num_speculative_tokens,
        device=device.partition(",")[0] if options.device == "auto" else options.device,
        threads=options.threads,
        ngram_max=options.ngram_max,
        ngram_min=options.ngram_min,
        script=None if options.script is None else str(options.script.resolve()),
        always=options.always or options.acceptance is not None,
        scripted_acceptance=options.acceptance,
    )


def local_endpoints(folder: Path, stages: int, attempt: int) -> Endpoints:
    """Unix sockets in a private folder. Only the bus is the same in every attempt: the API server stays connected."""
    return Endpoints(
        bus=f"ipc://{folder}/bus",
        results=f"ipc://{folder}/results-{attempt}",
        control=tuple(f"ipc://{folder}/control-{i}-{attempt}" for i in range(stages)),
        data=tuple(f"ipc://{folder}/data-{i}-{attempt}" for i in range(stages)),
        rendezvous=f"file://{folder}/rendezvous-{attempt}",
    )


def network_endpoints(hosts: Sequence[str], stages: int, port: int) -> Endpoints:
    """TCP ports from `port` on, all different, so that hosts may coincide.

    Hosts given as IP addresses listen on these alone; names do not tell an interface, so they listen on all of them.
    """
    _require(
        len(hosts) == stages + 1 and all(hosts),
        f"--hosts needs {stages + 1} names for {stages} stages: that of rank 0, then one a stage",
    )
    last = port + 2 + 2 * stages
    _require(port >= 1 and last <= 65535, f"--port {port}: the ports {port}..{last} must be 1..65535")
    engine, *stage_hosts = hosts
    return Endpoints(
        bus=f"tcp://{engine}:{port}",
        results=f"tcp://{engine}:{port + 1}",
        rendezvous=f"tcp://{stage_hosts[0]}:{port + 2}",
        control=tuple(f"tcp://{engine}:{port + 3 + i}" for i in range(stages)),
        data=tuple(f"tcp://{host}:{port + 3 + stages + i}" for i, host in enumerate(stage_hosts)),
        listen=None if all(map(_is_ip_address, hosts)) else "0.0.0.0",
    )


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)

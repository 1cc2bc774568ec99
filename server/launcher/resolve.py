"""From options to the configuration of an engine. Pure: reads nothing, starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import msgspec

from workers.decisions.check_config import check_config
from workers.decisions.split import balance, check_split
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig, TransportName
from workers.shared.drafters import DRAFTERS, DrafterName
from workers.shared.endpoints import zmq_endpoint
from workers.shared.errors import ConfigError
from workers.shared.hosts.tokens import check_token
from workers.shared.options.engine import (
    DEFAULT_MAX_MODEL_LEN,
    DEFAULT_STAGES,
    DrafterFields,
    DrafterOptions,
    EngineFields,
    EngineOptions,
)


@dataclass(frozen=True)
class ModelSize:
    """What the options of an engine are resolved against: a prepared model folder."""

    name: str  # under which draft modules know it
    folder: Path
    layer_bytes: Sequence[int]
    head_bytes: int
    max_positions: int
    module: Path | None = None  # the draft module that comes with Echelon for it


def plan_engine(options: EngineOptions, model: ModelSize, endpoints: Endpoints) -> EngineConfig:
    """The configuration that `options` mean for `model`; raises `ConfigError` naming the flag that is wrong."""
    return _plan(options, model, endpoints, [""] * (len(endpoints.data) + 1))


def plan_over_network(
    options: EngineOptions, model: ModelSize, hosts: Sequence[str], port: int, token: str = ""
) -> EngineConfig:
    """As `plan_engine`, for processes that are started one by one: rank 0 and then the stages run on `hosts`.

    Devices are named as each stage's own host or container sees them. `token` is the group's secret.
    """
    if token:
        check_token(token)
    endpoints = network_endpoints(hosts, len(choose_split(options, model)), port)
    endpoints = msgspec.structs.replace(endpoints, token=token)
    if options.transport == "inprocess":
        raise ConfigError("--transport inprocess has no processes to start one by one")
    return _plan(options, model, endpoints, hosts)


def _plan(options: EngineOptions, model: ModelSize, endpoints: Endpoints, hosts: Sequence[str]) -> EngineConfig:
    split = choose_split(options, model)
    devices = choose_devices(options.device, len(split), alone=options.transport == "inprocess")
    on_cpu = devices[0] == "cpu"
    transport = choose_transport(options, devices, hosts[1:])
    if transport == "zmq":
        endpoints = msgspec.structs.replace(endpoints, data=tuple(map(zmq_endpoint, endpoints.data)))
    config = EngineConfig(
        model=str(model.folder),
        split=split,
        endpoints=endpoints,
        max_model_len=choose_max_model_len(options.max_model_len, model.max_positions),
        dtype=options.dtype if options.dtype != "auto" else ("float32" if on_cpu else "bfloat16"),
        devices=devices,
        transport=transport,
        drafter=choose_drafter(options.drafter, model, devices[0] if hosts[0] == hosts[1] else "cpu"),
        **_same(options, EngineFields),
    )
    check_config(config)
    return config


def choose_split(options: EngineOptions, model: ModelSize) -> tuple[int, ...]:
    """Layers a stage: as given, or balanced over as many stages as asked for."""
    if not options.split:
        return balance(model.layer_bytes, model.head_bytes, options.stages or DEFAULT_STAGES)
    check_split(options.split, len(model.layer_bytes))
    if options.stages not in (None, len(options.split)):
        given = ",".join(map(str, options.split))
        raise ConfigError(f"--split {given} has {len(options.split)} stages, but --stages is {options.stages}")
    return options.split


def rebalanced(options: EngineOptions, model: ModelSize, speeds: Sequence[int] | None) -> EngineOptions:
    """The same options with layers for stages of these relative `speeds`, unless they name a split themselves."""
    if options.split or speeds is None:
        return options
    return msgspec.structs.replace(options, split=balance(model.layer_bytes, model.head_bytes, len(speeds), speeds))


def choose_devices(given: Sequence[str], stages: int, *, alone: bool) -> tuple[str, ...]:
    """One device a stage, or one for all of them, which `cuda` means if they are to be `alone` on it."""
    if tuple(given) == ("cuda",):
        return ("cuda:0",) if alone else tuple(f"cuda:{i}" for i in range(stages))
    return tuple(given)


def choose_transport(options: EngineOptions, devices: Sequence[str], hosts: Sequence[str]) -> TransportName:
    """How hidden states travel between stages on `hosts`: as given, or the fastest way that works."""
    if options.transport != "auto":
        return options.transport
    by_socket: TransportName = "zmq" if any(hosts) else "unix"
    if devices[0] == "cpu":
        return by_socket
    places = {(host, devices[stage % len(devices)]) for stage, host in enumerate(hosts)}
    if len(places) == len(hosts) > 1:
        return "nccl"
    return "inprocess" if len(places) == 1 and not any(hosts) else by_socket


def choose_max_model_len(asked: int | None, max_positions: int) -> int:
    """Positions to keep keys and values for."""
    if asked is None:
        return min(max_positions, DEFAULT_MAX_MODEL_LEN)
    if not 2 <= asked <= max_positions:
        raise ConfigError(f"--max-model-len must be 2..{max_positions}, the most this model was made for")
    return asked


def choose_drafter(options: DrafterOptions, model: ModelSize, device: str) -> DrafterConfig:
    """Settles `auto`; `device` is that of the first stage, or of rank 0's host where that is another."""
    module = Path(options.module) if options.module is not None else model.module
    name: DrafterName
    if options.name != "auto":
        name = options.name
    elif options.model is not None:
        name = "model"
    elif options.cascade:
        name = "cascade"
    else:  # a module cannot fill frames of several tokens
        name = "ngram" if module is None or options.num_speculative_tokens else "pdm+ngram"
    if options.module is None and not DRAFTERS[name].ships:
        module = None
    given = _same(options, DrafterFields)
    return DrafterConfig(
        name,
        module=None if module is None else str(module.resolve()),
        module_target=model.name,
        draft_model=options.model,
        device=device if options.device == "auto" else options.device,
        cascade=options.cascade,
        cascade_devices=options.cascade_device,
        **given
        | {
            "script": None if options.script is None else str(Path(options.script).resolve()),
            "always": options.always or options.scripted_acceptance is not None,
        },
    )


def local_endpoints(folder: Path, stages: int, attempt: int) -> Endpoints:
    """Unix sockets in a private folder. Only the bus is the same in every attempt: the API server stays connected."""
    return Endpoints(
        bus=f"ipc://{folder}/bus",
        results=f"ipc://{folder}/results-{attempt}",
        control=tuple(f"unix://{folder}/control-{i}-{attempt}" for i in range(stages)),
        data=tuple(f"unix://{folder}/data-{i}-{attempt}" for i in range(stages)),
        rendezvous=f"file://{folder}/rendezvous-{attempt}",
        cascade=f"unix://{folder}/cascade-{attempt}",
    )


def network_endpoints(hosts: Sequence[str], stages: int, port: int) -> Endpoints:
    """TCP ports from `port` on, all different, so that hosts may coincide.

    Hosts given as IP addresses listen on these alone; names do not tell an interface, so they listen on all of them.
    """
    if len(hosts) != stages + 1 or not all(hosts):
        raise ConfigError(f"--hosts needs {stages + 1} names for {stages} stages: that of rank 0, then one a stage")
    last = port + 2 + 2 * stages
    if port < 1 or last > 65535:
        raise ConfigError(f"--base-port {port}: the ports {port}..{last} must be 1..65535")
    addresses = [_ip_address(host) for host in hosts]
    engine, *stage_hosts = (
        f"[{address}]" if isinstance(address, IPv6Address) else host
        for host, address in zip(hosts, addresses, strict=True)
    )
    everywhere = "[::]" if any(isinstance(address, IPv6Address) for address in addresses) else "0.0.0.0"
    return Endpoints(
        bus=f"tcp://{engine}:{port}",
        results=f"tcp://{engine}:{port + 1}",
        rendezvous=f"tcp://{stage_hosts[0]}:{port + 2}",
        control=tuple(f"tcp://{engine}:{port + 3 + i}" for i in range(stages)),
        data=tuple(f"tcp://{host}:{port + 3 + stages + i}" for i, host in enumerate(stage_hosts)),
        listen=None if all(addresses) else everywhere,
    )


def is_loopback(host: str) -> bool:
    """Whether nobody on another machine can reach what listens on `host`."""
    address = _ip_address(host)
    return host == "localhost" if address is None else address.is_loopback


def is_address(host: str) -> bool:
    """Whether `host` is an IP address, which tells on which interface to listen."""
    return _ip_address(host) is not None


def _ip_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def _same(options: msgspec.Struct, fields: type[msgspec.Struct]) -> dict[str, Any]:
    """What `options` hand on as they are."""
    return {name: getattr(options, name) for name in fields.__struct_fields__}

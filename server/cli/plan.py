"""`echelon plan` and `echelon check-config`: what would be started, without starting it."""

import sys
import time
from pathlib import Path

import msgspec

from server.launcher.measured import measured_options
from server.launcher.options import PLAN, SERVE, CheckOptions, PlanOptions
from server.launcher.prepared import read_model, with_prepared_draft_model
from server.launcher.resolve import ModelSize, is_loopback, local_endpoints, plan_engine, plan_over_network
from server.launcher.speculative_config import settle_speculation
from server.settings import check_server, save_settings, settings_for
from workers.shared.config import EngineConfig, load_config, save_config
from workers.shared.errors import ConfigError
from workers.shared.hosts.tokens import draw_token
from workers.shared.memory import by_device, needs_of, report
from workers.shared.options.engine import DEFAULT_STAGES
from workers.shared.options.sources import decode, read

_TCP = "tcp://"


def plan(options: PlanOptions) -> int:
    """Writes the configuration of processes that are started one by one, or prints the engine's half of it."""
    check_server(options.api)
    model, config = _over_network(options)
    if options.out is None:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(config)).decode() + "\n")
        return 0
    settings = settings_for(
        options.api,
        model.name,
        config.model,
        config.endpoints.bus,
        health_timeout=config.stall_timeout,
        created=int(time.time()),
        token=config.endpoints.token,
    )
    folder = Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_config(config, folder / "engine.json")
        save_settings(settings, folder / "server.json")
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}") from error
    sys.stderr.write("\n".join(_description(config)) + "\n")
    return 0


def check_config_file(options: CheckOptions) -> int:
    """Prints what a file of options, or an engine.json, would start; raises `ConfigError` where it could not."""
    path = Path(options.file)
    content = decode(path)
    lines = []
    if "endpoints" in content:
        config = load_config(path)
    elif {"hosts", "base_port", "base-port"} & set(content):
        planned = read(PLAN, ["--config", str(path)], {})
        check_server(planned.api)
        _, config = _over_network(planned)
    else:
        served = read(SERVE, ["--config", str(path)], {})
        check_server(served.api)
        model = read_model(served)
        stages = len(served.engine.split) or served.engine.stages or DEFAULT_STAGES
        engine = with_prepared_draft_model(settle_speculation(served.engine))
        config = plan_engine(engine, model, local_endpoints(Path(), stages, 1))
        name = served.api.served_model_name or model.name
        lines.append(f"API server for {name} at {served.api.scheme}://{served.api.host}:{served.api.port}")
    sys.stdout.write("\n".join([*lines, *_description(config)]) + "\n")
    return 0


def _over_network(options: PlanOptions) -> tuple[ModelSize, EngineConfig]:
    options = msgspec.structs.replace(options, engine=settle_speculation(options.engine))
    model = read_model(options)
    stages = len(options.engine.split) or options.engine.stages or max(len(options.hosts) - 1, 0) or DEFAULT_STAGES
    engine = with_prepared_draft_model(options.engine)
    if engine.drafter.cascade:
        raise ConfigError("--cascade: its processes are started, and started again, by echelon serve, not by hand")
    if not engine.split:
        engine = msgspec.structs.replace(engine, stages=stages)
    hosts = options.hosts or ("engine", *(f"stage-{i}" for i in range(stages)))
    token = options.token or ("" if all(map(is_loopback, hosts)) else _earlier_token(options.out) or draw_token())
    config = plan_over_network(engine, model, hosts, options.base_port, token)
    if options.measure:
        engine, told = measured_options(engine, model, config)
        sys.stderr.write("\n".join(told) + "\n")
        config = plan_over_network(engine, model, hosts, options.base_port, token)
    return model, config


def _earlier_token(out: str | None) -> str:
    """The token that an earlier plan has left in the same folder: whoever was started with that one still has it."""
    try:
        return "" if out is None else load_config(Path(out) / "engine.json").endpoints.token
    except ConfigError:
        return ""


def _description(config: EngineConfig) -> list[str]:
    """What starts, where, and with how much memory."""
    drafts = config.drafter.num_speculative_tokens
    how = ""
    if drafts:
        how = f", {drafts} drafts a round"
    elif config.frame_width > 1:
        how = f", tokens a frame: {config.tokens_per_frame}"
    if config.breadth > 1:
        how += f", drafts a position: {config.tree_width}"
    needs = needs_of(config)
    lines = [
        f"model {config.model}, {config.dtype}, {sum(config.split)} layers over {config.transport}",
        f"rank 0 at {config.endpoints.bus if config.endpoints.bus.startswith(_TCP) else 'a Unix socket'}: drafter "
        f"{config.drafter.name} on {config.drafter.device}{how}",
        *report(needs, config),
    ]
    for (host, device), here in by_device(needs).items():
        total = sum(need.total(config.max_model_len) for need in here)
        lines.append(f"together on {f'{host} {device}'.strip()}: {total / 2**30:.2f} GiB")
    return lines

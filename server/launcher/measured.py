"""A split by what was measured on this machine's devices, by a process of its own because that needs torch."""

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from server.launcher.resolve import ModelSize
from workers.decisions.split import DeviceTimes, MeasuredSplit, balance_by_time
from workers.shared.config import EngineConfig, save_config
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import parent_variable
from workers.shared.options.engine import EngineOptions


def measured_options(options: EngineOptions, model: ModelSize, config: EngineConfig) -> tuple[EngineOptions, list[str]]:
    """`options`, which mean `config` so far, with the measured split; and lines that tell what was measured.

    A draft module whose device was not given shares that of the stage which it delays least. Raises `ConfigError`.
    """
    times = _measure(config)
    devices = [config.device(stage) for stage in range(config.stages)]
    beside = config.drafter.module is not None and options.drafter.device == "auto"
    made = balance_by_time(model.layer_bytes, [times[device] for device in devices], module=beside)
    options = msgspec.structs.replace(options, split=made.split, stages=None)
    if made.draft_stage is not None:
        drafter = msgspec.structs.replace(options.drafter, device=devices[made.draft_stage])
        options = msgspec.structs.replace(options, drafter=drafter)
    return options, _told(times, made, devices)


def _measure(config: EngineConfig) -> dict[str, DeviceTimes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.json"
        save_config(config, path)
        done = subprocess.run(
            [sys.executable, "-m", "workers.stage.measure", "--config", str(path)],
            stdout=subprocess.PIPE,
            env=parent_variable() | {"OMP_NUM_THREADS": str(config.threads)},
            check=False,
        )
    if done.returncode != 0:
        raise ConfigError("--measure: the devices of this machine could not be measured (see above)")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, DeviceTimes])


def _told(times: dict[str, DeviceTimes], made: MeasuredSplit, devices: list[str]) -> list[str]:
    lines = [
        f"measured on {device}: a layer {one.layer_ms:.3f} ms, head {one.head_ms:.3f} ms, embedding "
        f"{one.embed_ms:.3f} ms" + (f", a draft about {one.draft_ms:.3f} ms" if one.draft_ms else "")
        for device, one in times.items()
    ]
    stages = ", ".join(f"{ms:.2f}" for ms in made.stage_ms)
    lines.append(f"--split {','.join(map(str, made.split))}: {stages} ms a token and stage")
    if made.draft_stage is not None:
        device = devices[made.draft_stage]
        lines.append(
            f"the draft module shares {device} with stage {made.draft_stage}: {len(devices)} devices, not "
            f"{len(devices) + 1}, and about {times[device].draft_ms:.2f} ms of that stage's time"
        )
    return lines

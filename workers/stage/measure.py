"""`python -m workers.stage.measure --config FILE`: what one token takes on each device of an engine, as JSON.

For `echelon plan --measure`. As many layers are loaded as a stage would have, so that they do not fit into caches that
they would not fit into there.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from workers.decisions.split import DeviceTimes
from workers.model.shard import Shard
from workers.shared.config import EngineConfig, load_config
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import die_with_parent
from workers.shared.memory import model_bytes, module_bytes
from workers.shared.packed.inventory import read_inventory

_POSITION = 128  # of the token: some context, but weights are what counts
_WARM_UP, _ROUNDS = 3, 15


def measure(config: EngineConfig, device: str) -> DeviceTimes:
    """Medians of several tokens, in milliseconds; raises `ConfigError` where the layers do not fit.

    A draft of the module is what reading its weights takes, at the pace at which those of a layer are read.
    """
    torch.set_num_threads(config.threads)
    count, total = max(1, sum(config.split) // config.stages), sum(config.split)
    stage, ends = _load(config, range(count), device), _load(config, range(total, total), device, ends=True)
    before = torch.randn(_POSITION, stage.hidden_size).to(stage.device, stage.dtype)
    stage.forward(0, 0, [0] * _POSITION, before)  # what a token behind it begins with, where layers keep states
    ends.forward(0, 0, [0] * _POSITION, None)
    hidden = before[:1]
    layer_ms = _median_ms(lambda: stage.forward(0, _POSITION, [0], hidden), stage.device) / count
    draft_ms = 0.0
    if config.drafter.module is not None:
        folder = Path(config.model)
        held = read_inventory(folder, config.rounding)
        weights, _ = model_bytes(folder, held, range(count), config, device, first=False, last=False)
        module, _ = module_bytes(Path(config.drafter.module), config)
        draft_ms = layer_ms * module / (weights / count)
    return DeviceTimes(
        layer_ms,
        head_ms=_median_ms(lambda: ends.logits(hidden), ends.device),
        embed_ms=_median_ms(lambda: ends.forward(0, _POSITION, [0], None), ends.device),
        draft_ms=draft_ms,
    )


def _load(config: EngineConfig, layers: range, device: str, *, ends: bool = False) -> Shard:
    return Shard.load(
        Path(config.model),
        layers,
        first=ends,
        last=ends,
        dtype=getattr(torch, config.dtype),
        device=torch.device(device),
        max_len=min(config.max_model_len, 2 * _POSITION),
        sequences=1,
        rounding=config.rounding,
    )


def _median_ms(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_WARM_UP + _ROUNDS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[_WARM_UP:])


def main() -> int:
    """Exit status 0, or 2 where something cannot be measured (the reason is one line on stderr)."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m workers.stage.measure", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="engine configuration, .json or .toml")
    try:
        config = load_config(parser.parse_args().config)
        times = {device: measure(config, device) for device in dict.fromkeys(config.devices)}
    except ConfigError as error:
        sys.stderr.write(f"echelon: {error}\n")
        return 2
    sys.stdout.write(msgspec.json.encode(times).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

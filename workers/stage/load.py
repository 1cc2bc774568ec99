"""The layers of a stage, from a configuration: loaded, and recorded where its device can repeat frames."""

import time
from pathlib import Path
from threading import Lock

import torch

from workers.decisions.reminder import Reminder
from workers.model.captured_shard import CapturedShard
from workers.model.recorder import CudaGraphs, Recorder
from workers.model.shard import Shard, total_bytes
from workers.rehearsal.hollow import HollowShard
from workers.shared.config import EngineConfig
from workers.shared.memory import check_fits, neighbours
from workers.shared.model_files.windows import window_rule
from workers.shared.processes.logs import tell
from workers.shared.progress import Loading, Progress
from workers.stage.parts import Channel, Layers

_SIGN_OF_LIFE = 2.0  # seconds between two words to rank 0 while loading


def recorder_for(config: EngineConfig, index: int, lock: Lock) -> Recorder | None:
    """What records frames on the device of stage `index`, if anything does; `lock` is the process's."""
    device = torch.device(config.device(index))
    return CudaGraphs(device, lock) if device.type == "cuda" and not config.enforce_eager else None


def load_layers(config: EngineConfig, index: int, channel: Channel, recorder: Recorder | None) -> Layers:
    """The layers of stage `index`, with progress on stderr and to rank 0; raises `ConfigError` where they do not fit.

    Without a `recorder`, or where layers do what cannot be recorded, every kernel of a frame is started by itself.
    """
    if config.hollow_stages:
        return HollowShard(config)
    sign = _SignOfLife(channel, index)
    shard = _load_shard(config, index, sign)
    if recorder is None or shard.recurrent:
        return shard
    try:
        held = shard.weight_bytes  # all of them are loaded by now
        layers = shard.fused() if config.fuse_layers else None
        return CapturedShard(shard, recorder, config.recorded_widths, lambda: sign.give(held, held), layers)
    except RuntimeError as error:
        # Experts, for one, ask the device which of them have tokens. The text is the same kind of right without.
        tell(f"stage {index}: frames cannot be recorded on {shard.device}, as with --enforce-eager: {error}")
        return shard


class _SignOfLife:
    """Tells rank 0 now and then how far a stage is that loads."""

    def __init__(self, channel: Channel, index: int) -> None:
        self._channel = channel
        self._index = index
        self._due = Reminder(_SIGN_OF_LIFE, time.monotonic(), longest=_SIGN_OF_LIFE)

    def give(self, done: int, total: int) -> None:
        """`done` of `total` bytes are loaded."""
        if self._due.due(time.monotonic()):
            self._channel.report(Loading(self._index, done, total))


def _load_shard(config: EngineConfig, index: int, sign: _SignOfLife) -> Shard:
    torch.set_num_threads(config.threads)
    # Stages that are started by hand at the same time all see the same memory as free.
    check_fits(neighbours(config, index), config.max_model_len, total_bytes(torch.device(config.device(index))))
    with Progress(f"stage {index}: loading {len(config.layers(index))} layers on {config.device(index)}") as progress:

        def loaded(done: int, total: int) -> None:
            progress.update(done, total)
            sign.give(done, total)

        return Shard.load(
            Path(config.model),
            config.layers(index),
            first=index == 0,
            last=index == config.stages - 1,
            dtype=getattr(torch, config.dtype),
            device=torch.device(config.device(index)),
            max_len=config.max_model_len,
            sequences=config.max_num_seqs,
            pool=config.max_total_tokens,
            kv_dtype=torch.float8_e4m3fn if config.kv_cache_dtype == "fp8_e4m3" else None,
            windows=window_rule(config),
            rounding=config.rounding,
            ahead=config.tokens_in_flight,
            wide=config.frame_width,
            chunk=config.prefill_chunk,
            scratch=config.scratch,
            progress=loaded,
        )

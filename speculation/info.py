"""What rank 0 says of the engine it is part of."""

from collections.abc import Iterable

from speculation.stream import Stream
from workers.shared.config import EngineConfig
from workers.shared.fingerprint import engine_fingerprint
from workers.shared.messages import EngineInfo, KvUse


def engine_info(config: EngineConfig, vocab_size: int) -> EngineInfo:
    """What the engine of `config` serves."""
    return EngineInfo(
        stages=config.stages,
        split=config.split,
        drafter=config.drafter.name,
        delta=config.delta,
        max_model_len=config.max_model_len,
        vocab_size=vocab_size,
        rehearsal=config.rehearsal,
        emulated=config.emulate,
        num_speculative_tokens=config.drafter.num_speculative_tokens,
        max_num_seqs=config.max_num_seqs,
        tokens_per_frame=config.tokens_per_frame,
        tree_width=config.tree_width,
        fingerprint=engine_fingerprint(config),
    )


def kv_use(positions: int, streams: Iterable[Stream]) -> KvUse:
    """Of the `positions` that all slots have memory for: those of requests that run, and those that idle slots keep."""
    running, kept = 0, 0
    for stream in streams:
        if stream.request is None:
            kept += stream.schedule.kept
        else:
            running += stream.schedule.announced
    return KvUse(positions, running, kept)

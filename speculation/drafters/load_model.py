"""Loads a draft model and makes drafters of it."""

from collections.abc import Callable
from pathlib import Path

import torch

from speculation.drafters.model import ModelDrafter
from workers.model.shard import Shard
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import read_facts
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.layers import has_states
from workers.shared.model_files.vocabulary import check_vocabulary
from workers.shared.progress import Progress


def load(engine: EngineConfig, vocab_size: int) -> Callable[[int], ModelDrafter]:
    """The configured draft model, in the engine's dtype, with as many KV slots as the engine.

    Beyond the draft model's own context there are no drafts. Raises `ConfigError` where it cannot be read, or has
    another vocabulary than the target.
    """
    config = engine.drafter
    if config.draft_model is None:
        raise ConfigError("--drafter model needs --draft-model MODEL: a small model with the vocabulary of the target")
    folder, target = Path(config.draft_model), Path(engine.model)
    check_vocabulary(folder, target, "--draft-model")
    shard, capacity = load_whole(engine, folder, config.device, "--draft-model")
    return lambda slot: ModelDrafter(shard, vocab_size, capacity, slot, branches=engine.breadth > 1)


def load_whole(engine: EngineConfig, folder: Path, device: str, flag: str) -> tuple[Shard, int]:
    """All layers of a small model, in the engine's dtype, with as many KV slots as the engine; and their positions.

    Raises `ConfigError`, naming `flag`, for a model whose text cannot be taken back.
    """
    if has_states(read_json(folder / "config.json")):
        raise ConfigError(f"{flag} {folder}: has recurrent layers, which a draft model may not have; choose another")
    facts = read_facts(folder)
    capacity = min(engine.max_model_len, facts.max_position_embeddings)
    torch.set_num_threads(engine.drafter.threads)
    with Progress(f"draft model {folder.name}: loading on {device}") as progress:
        shard = Shard.load(
            folder,
            range(facts.num_hidden_layers),
            first=True,
            last=True,
            dtype=getattr(torch, engine.dtype),
            device=torch.device(device),
            max_len=capacity,
            sequences=engine.max_num_seqs,
            scratch=engine.scratch,
            progress=progress.update,
        )
    return shard, capacity

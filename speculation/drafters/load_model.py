"""Loads a draft model and makes drafters of it."""

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer

from speculation.drafters.model import ModelDrafter
from workers.model.shard import Shard
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import read_facts
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.layers import has_states
from workers.shared.progress import Progress

_TOKENIZER = "tokenizer.json"


def load(engine: EngineConfig, vocab_size: int) -> Callable[[int], ModelDrafter]:
    """The configured draft model, in the engine's dtype, with as many KV slots as the engine.

    Beyond the draft model's own context there are no drafts. Raises `ConfigError` where it cannot be read, or has
    another vocabulary than the target.
    """
    config = engine.drafter
    if config.draft_model is None:
        raise ConfigError("--drafter model needs --draft-model MODEL: a small model with the vocabulary of the target")
    folder, target = Path(config.draft_model), Path(engine.model)
    check_vocabulary(folder, target)
    if has_states(read_json(folder / "config.json")):
        raise ConfigError(
            f"--draft-model {folder}: has recurrent layers, which a draft model may not have; choose another"
        )
    facts = read_facts(folder)
    capacity = min(engine.max_model_len, facts.max_position_embeddings)
    torch.set_num_threads(config.threads)
    with Progress(f"draft model {folder.name}: loading on {config.device}") as progress:
        shard = Shard.load(
            folder,
            range(facts.num_hidden_layers),
            first=True,
            last=True,
            dtype=getattr(torch, engine.dtype),
            device=torch.device(config.device),
            max_len=capacity,
            sequences=engine.max_num_seqs,
            scratch=engine.scratch,
            progress=progress.update,
        )
    return lambda slot: ModelDrafter(shard, facts.vocab_size, capacity, slot, branches=engine.tree_width > 1)


def check_vocabulary(draft: Path, target: Path) -> None:
    """Raises `ConfigError` unless a token id means the same to both prepared model folders."""
    sizes = read_facts(draft).vocab_size, read_facts(target).vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"--draft-model {draft} has a vocabulary of {sizes[0]} tokens, the target {target} one of {sizes[1]}; "
            f"choose a draft model of the target's family"
        )
    if _same_bytes(draft / _TOKENIZER, target / _TOKENIZER) or _tokens(draft) == _tokens(target):
        return
    raise ConfigError(
        f"--draft-model {draft} has another {_TOKENIZER} than the target {target}: their token ids mean different "
        f"text; choose a draft model of the target's family"
    )


def _same_bytes(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


def _tokens(folder: Path) -> dict[str, int]:
    """Every token's id; what else a tokenizer.json says (merges, padding, templates) concerns the server alone."""
    path = folder / _TOKENIZER
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8")).get_vocab()
    except Exception as error:  # the library raises bare `Exception` for whatever is wrong with the file
        raise ConfigError(f"{path}: {error}") from error

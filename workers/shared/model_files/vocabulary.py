"""Whether token ids mean the same to two models."""

from pathlib import Path

from tokenizers import Tokenizer

from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import read_facts

_TOKENIZER = "tokenizer.json"


def check_vocabulary(draft: Path, target: Path, flag: str) -> None:
    """Raises `ConfigError`, naming `flag`, unless a token id means the same to both prepared model folders."""
    sizes = read_facts(draft).vocab_size, read_facts(target).vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{flag} {draft} has a vocabulary of {sizes[0]} tokens, the target {target} one of {sizes[1]}; "
            f"choose a draft model of the target's family"
        )
    if _same_bytes(draft / _TOKENIZER, target / _TOKENIZER) or _tokens(draft) == _tokens(target):
        return
    raise ConfigError(
        f"{flag} {draft} has another {_TOKENIZER} than the target {target}: their token ids mean different "
        f"text; choose a draft model of the target's family"
    )


def _same_bytes(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


def _tokens(folder: Path) -> dict[str, int]:
    """Every token's id; what else a tokenizer.json says (merges, padding, templates) concerns the server alone."""
    return read_tokenizer(folder).get_vocab()


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a prepared model folder; raises `ConfigError` where it cannot be read."""
    path = folder / _TOKENIZER
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare `Exception` for whatever is wrong with the file
        raise ConfigError(f"{path}: {error}") from error

"""Examples: a rendered prompt and the target's own answer to it."""

import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from speculation.training.examples.prompts import render
from workers.shared.errors import ConfigError


class Record(msgspec.Struct):
    """One line of a data file, as `speculation.training.distill` writes it."""

    prompt: str
    answer: str
    answer_ids: list[int] | None = None
    temperature: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Example:
    """Token ids of one exchange. The answer's tokens are what the module learns to draft."""

    tokens: tuple[int, ...]
    prompt_length: int
    temperature: float
    held_out: bool

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def newest(self) -> range:
        """Positions after which a token is drafted: the prefill gives the first answer token, drafts the others."""
        return range(self.prompt_length, len(self.tokens) - 1)


def data_files(path: Path) -> list[Path]:
    """`path` itself, or the `.jsonl` and `.jsonl.gz` files in it; raises `ConfigError` where there is none."""
    if path.is_file():
        return [path]
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")])
    if not files:
        raise ConfigError(f"{path}: no .jsonl or .jsonl.gz file; give a data file or a folder of them")
    return files


def read_records(path: Path) -> Iterator[Record]:
    """The records of one data file; raises `ConfigError` with file and line."""
    line_number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                line_number += 1
                yield msgspec.json.decode(line, type=Record)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}, line {line_number}: {error}") from error
    except (OSError, EOFError, zlib.error) as error:  # the last two: a damaged .gz file
        raise ConfigError(f"{path}, after line {line_number}: {error}") from error


def data_hash(files: Sequence[Path]) -> str:
    """SHA-256 over the contents of `files`, in order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_held_out(prompt: str, share: float) -> bool:
    """Whether a prompt is kept for validation. It depends on the text alone: all answers to it stay together."""
    number = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big")
    return number < share * 2**64


def load_examples(
    files: Sequence[Path], tokenizer: Any, vocab_size: int, max_length: int, held_out: float
) -> list[Example]:
    """All examples with something to draft, rendered with the tokenizer's chat template and cut at `max_length`.

    Raises `ConfigError` for token ids outside of the target's vocabulary, and where nothing is left to train on, or
    to validate with although a share is `held_out`.
    """
    examples = []
    for path in files:
        for number, record in enumerate(read_records(path), 1):
            prompt: list[int] = tokenizer.encode(render(tokenizer, record.prompt), add_special_tokens=False)
            answer = record.answer_ids
            if answer is None:
                answer = tokenizer.encode(record.answer, add_special_tokens=False)
                if tokenizer.eos_token_id is not None:
                    answer = [*answer, tokenizer.eos_token_id]
            tokens = tuple([*prompt, *answer][:max_length])
            if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
                raise ConfigError(
                    f"{path}, line {number}: token ids {min(tokens)}..{max(tokens)}, but the target's vocabulary has "
                    f"{vocab_size}: these are another model's answers, or the tokenizer is another's"
                )
            example = Example(tokens, len(prompt), record.temperature, is_held_out(record.prompt, held_out))
            if example.newest:
                examples.append(example)
    names = ", ".join(map(str, files))
    if all(example.held_out for example in examples):
        raise ConfigError(f"{names}: no example with an answer to train on within --max-length {max_length}")
    if held_out > 0 and not any(example.held_out for example in examples):
        raise ConfigError(
            f"--held-out {held_out:g}: none of the {len(examples)} examples in {names} is held out for validation; "
            "hold out a larger share, or give --held-out 0 to go without"
        )
    return examples


def examples_hash(examples: Sequence[Example]) -> str:
    """SHA-256 of everything that is learnt from: two runs with the same see the same tokens in the same order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example.prompt_length} {example.temperature} {example.held_out} {example.tokens}\n".encode())
    return digest.hexdigest()


def answer_counts(examples: Sequence[Example]) -> Counter[int]:
    """How often each token occurs in the answers."""
    return Counter(token for example in examples for token in example.tokens[example.prompt_length :])

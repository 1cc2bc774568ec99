"""Examples: a rendered prompt and the target's own answer to it."""

import gzip
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

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
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield msgspec.json.decode(line, type=Record)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from error


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


def load_examples(files: Sequence[Path], tokenizer: Any, max_length: int, held_out: float) -> list[Example]:
    """All examples with something to draft, rendered with the tokenizer's chat template and cut at `max_length`."""
    examples = []
    for path in files:
        for record in read_records(path):
            message = [{"role": "user", "content": record.prompt}]
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            prompt: list[int] = tokenizer.encode(text, add_special_tokens=False)
            answer = record.answer_ids
            if answer is None:
                answer = tokenizer.encode(record.answer, add_special_tokens=False)
                if tokenizer.eos_token_id is not None:
                    answer = [*answer, tokenizer.eos_token_id]
            example = Example(
                tuple([*prompt, *answer][:max_length]),
                len(prompt),
                record.temperature,
                is_held_out(record.prompt, held_out),
            )
            if example.newest:
                examples.append(example)
    if not any(not example.held_out for example in examples):
        raise ConfigError(f"{', '.join(map(str, files))}: no example with an answer to train on")
    return examples


def answer_counts(examples: Sequence[Example]) -> Counter[int]:
    """How often each token occurs in the answers."""
    return Counter(token for example in examples for token in example.tokens[example.prompt_length :])

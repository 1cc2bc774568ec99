"""Evaluation prompts: each `*.jsonl` file of a folder is a data set."""

import hashlib
import zlib
from pathlib import Path
from typing import Any

import msgspec

from workers.shared.errors import ConfigError


class DataSetLine(msgspec.Struct, frozen=True):
    """One line of a data set; other fields are ignored."""

    question_id: int | str
    turns: list[str]  # the first is used


class Prompt(msgspec.Struct, frozen=True):
    """One user message, and the seed that every method answers it with."""

    dataset: str
    question: str
    text: str
    seed: int


def chat_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of one user message by the chat template of a tokenizer of transformers'."""
    message = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"])


class DataSet(msgspec.Struct, frozen=True):
    """The prompts used of one file."""

    name: str
    prompts: list[Prompt]

    @property
    def digest(self) -> str:
        """SHA-256 of the prompts used."""
        return hashlib.sha256(msgspec.json.encode(self.prompts)).hexdigest()


def load_data_sets(folder: Path, limit: int | None, seed: int) -> list[DataSet]:
    """The data sets of `folder` by name, at most `limit` prompts of each.

    Raises `ConfigError` naming the file and the line that cannot be used.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"--prompts {folder}: no .jsonl file in this folder")
    return [DataSet(file.stem, _read(file, limit, seed)) for file in files]


def _read(file: Path, limit: int | None, seed: int) -> list[Prompt]:
    prompts: list[Prompt] = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        if len(prompts) == limit:
            break
        try:
            question = msgspec.json.decode(line, type=DataSetLine)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error
        if not question.turns or not question.turns[0]:
            raise ConfigError(f"{file}, line {number}: `turns` needs at least one text")
        name = str(question.question_id)
        own_seed = zlib.crc32(f"{seed}/{file.stem}/{name}".encode())
        prompts.append(Prompt(file.stem, name, question.turns[0], own_seed))
    if not prompts:
        raise ConfigError(f"{file}: has no prompts")
    if len({prompt.question for prompt in prompts}) != len(prompts):
        raise ConfigError(f"{file}: a `question_id` occurs twice; make them different")
    return prompts

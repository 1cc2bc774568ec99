"""Where distillation prompts come from: a file, or the model itself."""

from pathlib import Path
from typing import Any

import msgspec

from workers.shared.errors import ConfigError

_PROBE = "\N{SYMBOL FOR NULL}"  # stands for the user's text; no template contains it


class PromptRecord(msgspec.Struct):
    """A line of a prompt file; other fields are ignored."""

    prompt: str


def read_prompts(path: Path) -> list[str]:
    """Prompts of a `.jsonl` file with a field `prompt`, or else the lines of a text file; blank ones are left out."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from error
    if path.suffix != ".jsonl":
        return [line.decode().strip() for line in lines if line.strip()]
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            prompts.append(msgspec.json.decode(line, type=PromptRecord).prompt)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
    return [prompt for prompt in prompts if prompt.strip()]


def pre_query(tokenizer: Any) -> str:
    """The chat template up to where the user's text starts: what a model continues with is an instruction.

    (The idea of Magpie, arXiv 2406.08464.) Raises `ConfigError` where the template does not show the text unchanged.
    """
    message = [{"role": "user", "content": _PROBE}]
    rendered: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    before, found, _ = rendered.partition(_PROBE)
    if not found:
        raise ConfigError("the chat template does not contain the user's text; give prompts with --prompts")
    return before


def usable_instruction(text: str) -> str | None:
    """The instruction that a model wrote after its pre-query template, or None where it is no use."""
    instruction = text.strip()
    return instruction if 10 <= len(instruction) <= 1000 else None

"""Where distillation prompts come from: a file, or the model itself."""

import unicodedata
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from workers.shared.errors import ConfigError

_PROBE = "\N{SYMBOL FOR NULL}"  # stands for the user's text; no template contains it


class PromptRecord(msgspec.Struct):
    """A line of a prompt file; other fields are ignored."""

    prompt: str


def read_prompts(path: Path) -> list[str]:
    """Prompts of a `.jsonl` file with a field `prompt`, or else the lines of a text file; blank ones are left out.

    Raises `ConfigError`, with the line, for a file that is neither, and where it holds no prompt.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from error
    read = _prompt_of_json if path.suffix == ".jsonl" else _prompt_of_text
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            prompts.append(read(line) if line.strip() else "")
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigError(
                f"{path}, line {number}: {error}; --prompts takes a .jsonl file with a field prompt, or UTF-8 text"
            ) from error
    prompts = [prompt for prompt in prompts if prompt.strip()]
    if not prompts:
        raise ConfigError(f"{path}: no prompt in this file")
    return prompts


def _prompt_of_json(line: bytes) -> str:
    return msgspec.json.decode(line, type=PromptRecord).prompt


def _prompt_of_text(line: bytes) -> str:
    """Raises `ValueError` for what can be no text that somebody wrote for a model."""
    prompt = line.decode().strip()
    if any(unicodedata.category(character) == "Cc" and character != "\t" for character in prompt):
        raise ValueError("control characters: this is no text")
    if prompt.startswith("{") and _is_json(prompt):
        raise ValueError("this is JSON")
    return prompt


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return False
    return True


def render(tokenizer: Any, prompt: str) -> str:
    """The chat prompt of one user message; raises `ConfigError` where the tokenizer has no chat template for it."""
    message = [{"role": "user", "content": prompt}]
    try:
        rendered: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    except (ValueError, jinja2.TemplateError) as error:
        raise ConfigError(f"the model's chat template: {error}") from error
    return rendered


def pre_query(tokenizer: Any) -> str:
    """The chat template up to where the user's text starts: what a model continues with is an instruction.

    (The idea of Magpie, arXiv 2406.08464.) Raises `ConfigError` where the template does not show the text unchanged.
    """
    before, found, _ = render(tokenizer, _PROBE).partition(_PROBE)
    if not found:
        raise ConfigError("the chat template does not contain the user's text; give prompts with --prompts")
    return before


def usable_instruction(text: str) -> str | None:
    """The instruction that a model wrote after its pre-query template, or None where it is no use."""
    instruction = text.strip()
    return instruction if 10 <= len(instruction) <= 1000 else None

"""Renders a model's chat template in jinja2's sandbox, with the globals and filters that Hugging Face gives it."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workers.shared.errors import ConfigError
from workers.shared.model_files.end_tokens import token_content
from workers.shared.model_files.json_file import read_optional_json

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_templates(folder: Path, file: Path | None = None) -> "dict[str, ChatTemplate]":
    """The templates of a model folder by name, `file` in place of the default one; empty if there are none.

    They stand in `tokenizer_config.json`, one or several with their names, and in files that take precedence:
    `chat_template.jinja` and `additional_chat_templates/NAME.jinja`. Raises `ConfigError`.
    """
    path = folder / "tokenizer_config.json"
    config = read_optional_json(path)
    sources = _named_sources(config.get("chat_template"), path)
    for place in (folder / "chat_template.jinja", *sorted((folder / "additional_chat_templates").glob("*.jinja"))):
        if place.exists():
            sources["default" if place.parent == folder else place.stem] = _read(place)
    if file is not None:
        sources = {"default": _read(file)}
    tokens = {name: token_content(config.get(name)) for name in _TOKEN_NAMES}
    special = {name: content for name, content in tokens.items() if content is not None}
    return {name: ChatTemplate(source, special) for name, source in sources.items()}


def _named_sources(value: Any, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        return msgspec.convert({entry["name"]: entry["template"] for entry in value}, dict[str, str])
    except (TypeError, KeyError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: chat_template must be text, or a list of objects with name and template") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}; it should hold a chat template") from error


class TemplateFailed(ValueError):
    """The template refuses these messages, or cannot render them."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2 declares the attribute this way

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The statements inside the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """The template of one model folder; raises `ConfigError` where it does not compile."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.source = source

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, extra: Mapping[str, Any]
    ) -> str:
        """The prompt text of a conversation; `extra` are further template variables. Raises `TemplateFailed`."""
        variables: dict[str, Any] = {
            **self._special_tokens,
            "tools": None,
            "documents": None,
            **extra,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except jinja2.TemplateError as error:
            raise TemplateFailed(f"the model's chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            # What an expression of the template raises on values it was not written for.
            raise TemplateFailed(f"the model's chat template cannot render these messages: {error}") from error


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which a model has never seen.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

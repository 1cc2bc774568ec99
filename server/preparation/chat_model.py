"""One model under each of its chat templates: how it is prompted, and how it writes tool calls and reasoning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.errors import bad_request
from server.output.reasoning_parser import CLOSE, OPEN
from server.preparation.conversation import ChatPrompts
from server.preparation.template import ChatTemplate, load_templates
from server.structured_output.grammars import Spelling, special_literal
from server.tokenizer import ModelTokenizer
from server.tool_parsers.dialects import Dialect, choose_dialect

_TAIL = 16  # tokens of the prompt in which an opened block of reasoning is looked for
_DEFAULT, _WITH_TOOLS = "default", "tool_use"  # the names that Hugging Face's templates go by


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model under one chat template."""

    prompts: ChatPrompts
    tokenizer: ModelTokenizer
    dialect: Dialect
    native_tools: bool  # the template shows tools to the model
    reasoning: bool

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: ModelTokenizer, wanted: str | None) -> "ChatModel":
        """Raises `ConfigError` for a `wanted` dialect there is not."""
        dialect, native = choose_dialect(template.source, tokenizer.control_tokens, wanted)
        reasoning = CLOSE in template.source or CLOSE in tokenizer.control_tokens
        return cls(ChatPrompts(tokenizer, template), tokenizer, dialect, native, reasoning)

    @property
    def markers(self) -> dict[str, int | None]:
        """Texts that mark calls and reasoning, with their ids where they are control tokens."""
        texts = (*self.dialect.markers, *((OPEN, CLOSE) if self.reasoning else ()))
        return {text: self.tokenizer.control_tokens.get(text) for text in texts}

    @property
    def literal(self) -> Spelling:
        """How a grammar for this model writes text that may hold control tokens."""
        return special_literal({text: token for text, token in self.markers.items() if token is not None})

    def opened(self, prompt: Sequence[int]) -> bool:
        """Whether `prompt` has begun the model's reasoning already."""
        if not self.reasoning:
            return False
        tail = b"".join(map(self.tokenizer.token_bytes, prompt[-_TAIL:]))
        return tail.rstrip().endswith(OPEN.encode())


class ChatModels:
    """A model under each of its chat templates, by name."""

    def __init__(self, by_name: Mapping[str, ChatModel]) -> None:
        self._by_name = by_name

    @classmethod
    def load(cls, folder: Path, tokenizer: ModelTokenizer, file: Path | None, wanted: str | None) -> "ChatModels":
        """Of a model folder; `file` holds a template that replaces its own. Raises `ConfigError`."""
        templates = load_templates(folder, file)
        return cls({name: ChatModel.of(template, tokenizer, wanted) for name, template in templates.items()})

    @property
    def default_source(self) -> str | None:
        """Of the default template, if there is one."""
        default = self._by_name.get(_DEFAULT)
        return None if default is None else default.prompts.source

    def choose(self, name: str | None, *, tools: bool) -> ChatModel:
        """By the name that a request gives, else as Hugging Face chooses: by whether there are `tools`.

        Raises `ApiError`.
        """
        if not self._by_name:
            raise bad_request("this model has no chat template; use /v1/completions", "messages")
        names = ", ".join(sorted(self._by_name))
        if name is not None:
            if name not in self._by_name:
                raise bad_request(
                    f"'chat_template' must be the name of one of this model's templates: {names}", "chat_template"
                )
            return self._by_name[name]
        if tools and _WITH_TOOLS in self._by_name:
            return self._by_name[_WITH_TOOLS]
        if _DEFAULT not in self._by_name:
            raise bad_request(
                f"this model has no default chat template; name one in 'chat_template': {names}", "chat_template"
            )
        return self._by_name[_DEFAULT]

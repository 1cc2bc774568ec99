"""Tokens of a conversation, in which text from the user never becomes a control token.

Where no message holds the literal of a control token, the rendered text is encoded whole, as Hugging Face's
`apply_chat_template` does. Otherwise each literal is replaced by a private-use character before rendering, so that
only the template's own control tokens are parsed; the text between them is restored and encoded by a tokenizer
that knows no control tokens.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from server.preparation.template import ChatTemplate
from server.tokenizer import ModelTokenizer

_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_PRIVATE_USE_CHARS = re.compile(f"[{chr(_PRIVATE_USE[0])}-{chr(_PRIVATE_USE[-1])}]")

Message = Mapping[str, Any]


class ChatPrompts:
    """Encodes conversations for one model."""

    def __init__(self, tokenizer: ModelTokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._finder = LiteralFinder(tuple(tokenizer.control_tokens))

    @property
    def source(self) -> str:
        """Of the template."""
        return self._template.source

    def encode(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, extra: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Prompt tokens; raises `TemplateFailed`, or `ValueError` for text that cannot be encoded safely."""
        given: dict[str, Any] = {"messages": messages, "extra": extra or {}}
        whole = self._tokenizer.encode(self._render(given, add_generation_prompt), add_special_tokens=False)
        originals: dict[str, str] = {}
        shielded = _map_strings(given, self._finder.shield(self._free_sentinels(given), originals))
        if not originals:
            return whole
        parts = self._tokenizer.split_control(self._render(shielded, add_generation_prompt))
        if [part for part in parts if isinstance(part, int)] == self._tokenizer.control_ids(whole):
            return whole  # there were only fragments, and no two of them met
        restore = str.maketrans(originals)
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else self._tokenizer.encode_plain(part.translate(restore))
        return ids

    def _render(self, given: Mapping[str, Any], add_generation_prompt: bool) -> str:
        return self._template.render(
            given["messages"], add_generation_prompt=add_generation_prompt, extra=given["extra"]
        )

    def _free_sentinels(self, given: object) -> Iterator[str]:
        """Characters that nobody uses; looked for when the first one is asked for."""
        taken = set(_PRIVATE_USE_CHARS.findall(self._template.source))
        for string in _strings(given):
            taken.update(_PRIVATE_USE_CHARS.findall(string))
        yield from (chr(code) for code in _PRIVATE_USE if chr(code) not in taken)


class LiteralFinder:
    """Finds the literals of control tokens in a string, and fragments of them at its ends.

    Fragments matter because two strings that a template joins may make a literal that neither of them holds.
    """

    def __init__(self, literals: Sequence[str]) -> None:
        self._longest = max(map(len, literals), default=0)
        heads = {literal[:end] for literal in literals for end in range(1, len(literal))}
        tails = {literal[start:] for literal in literals for start in range(1, len(literal))}
        self._literal = re.compile(_any_of(literals))
        self._head = re.compile(rf"(?:{_any_of(heads)})\Z")
        self._tail = re.compile(rf"\A(?:{_any_of(tails)})")

    def shield(self, free: Iterator[str], originals: dict[str, str]) -> Callable[[str], str]:
        """A function that replaces what is found by characters from `free`; `originals` tells what each hides."""
        sentinels: dict[str, str] = {}

        def replace(match: re.Match[str]) -> str:
            piece = match[0]
            if piece not in sentinels:
                sentinels[piece] = next(free)
                originals[sentinels[piece]] = piece
            return sentinels[piece]

        def apply(string: str) -> str:
            string = self._literal.sub(replace, string)
            cut = max(0, len(string) - self._longest)
            string = string[:cut] + self._head.sub(replace, string[cut:])
            return self._tail.sub(replace, string[: self._longest]) + string[self._longest :]

        return apply


def _any_of(strings: "Sequence[str] | set[str]") -> str:
    """A pattern for any of `strings`, the longest first; one that never matches if there are none."""
    return "|".join(map(re.escape, sorted(strings, key=lambda string: (-len(string), string)))) or r"(?!)"


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        # Names of fields are the template's, not the user's, unless they hold a literal themselves.
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value

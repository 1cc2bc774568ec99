"""The ways in which model families write tool calls, and which one a model's files speak for."""

import secrets
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from server.output.parts import Reader
from server.tool_parsers import harmony, hermes, llama3, mistral
from workers.shared.errors import ConfigError

_ALPHANUMERIC = string.ascii_letters + string.digits


class ReaderMaker(Protocol):
    """Makes the reader of one answer."""

    def __call__(self, new_id: Callable[[], str], *, single: bool, forced: bool) -> Reader:
        """As `CharReader` says."""


@dataclass(frozen=True)
class Dialect:
    """How calls are read, and how a grammar writes them: `opening CALL separator CALL ... closing`."""

    name: str
    reader: ReaderMaker
    markers: tuple[str, ...]  # may be control tokens, whose text must not be dropped
    before: str  # of each call; {name} stands for the function
    after: str
    separator: str
    opening: str = ""
    closing: str = ""
    begins_with: str | None = None  # what cannot be anything but the beginning of calls
    id_length: int = 24
    whole: bool = False  # whether it is how all of an answer is written, with calls or without

    def new_id(self) -> str:
        """An id for a call, random."""
        prefix = "call_" if self.id_length > 9 else ""  # Mistral's templates want nine letters or digits
        return prefix + "".join(secrets.choice(_ALPHANUMERIC) for _ in range(self.id_length))


HERMES = Dialect(
    "hermes",
    hermes.HermesReader,
    (hermes.OPEN, hermes.CLOSE),
    before=hermes.OPEN + '\n{{"name": "{name}", "arguments": ',
    after="}\n" + hermes.CLOSE,
    separator="\n",
    begins_with=hermes.OPEN,
)
LLAMA3 = Dialect(
    "llama3_json",
    llama3.Llama3Reader,
    (llama3.MARKER,),
    before='{{"name": "{name}", "parameters": ',
    after="}",
    separator="; ",
)
MISTRAL = Dialect(
    "mistral",
    mistral.MistralReader,
    (mistral.MARKER,),
    opening=mistral.MARKER + "[",
    before='{{"name": "{name}", "arguments": ',
    after="}",
    separator=", ",
    closing="]",
    begins_with=mistral.MARKER,
    id_length=9,
)
MISTRAL_ARGS = Dialect(
    "mistral_args",
    mistral.MistralReader,
    (mistral.MARKER, mistral.ARGS, mistral.CALL_ID),
    before=mistral.MARKER + "{name}" + mistral.ARGS,
    after="",
    separator="",
    begins_with=mistral.MARKER,
    id_length=9,
)
HARMONY = Dialect(
    "harmony",
    harmony.HarmonyReader,
    harmony.MARKERS,
    before=harmony.CHANNEL + "commentary to=functions.{name} " + harmony.CONSTRAIN + "json" + harmony.MESSAGE,
    after="",
    separator=harmony.ENDS[0] + harmony.START + "assistant",
    whole=True,
)
DIALECTS = {dialect.name: dialect for dialect in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, HARMONY)}


def choose_dialect(template: str, control_tokens: Collection[str], wanted: str | None) -> tuple[Dialect, bool]:
    """The model's dialect, and whether its chat template shows tools to the model by itself.

    `wanted` overrides the choice; raises `ConfigError` for a name there is not. A model that has not been taught any
    of the dialects gets Hermes, explained in the prompt (`server.preparation.explained_tools`).
    """
    takes_tools = "tools" in template
    if wanted is not None:
        if wanted not in DIALECTS:
            raise ConfigError(f"--tool-call-parser {wanted}: must be one of {', '.join(DIALECTS)}")
        return DIALECTS[wanted], takes_tools
    if harmony.CHANNEL in control_tokens and harmony.CHANNEL in template:
        return HARMONY, takes_tools
    if mistral.MARKER in control_tokens or mistral.MARKER in template:
        return (MISTRAL_ARGS if mistral.ARGS in control_tokens else MISTRAL), takes_tools
    # Templates with other notations inside of <tool_call> were not written for Hermes.
    if takes_tools and hermes.OPEN in template and "<function=" not in template and "<arg_key>" not in template:
        return HERMES, True
    if takes_tools and llama3.MARKER in control_tokens:
        return LLAMA3, True
    return HERMES, False

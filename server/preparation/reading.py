"""How the text of a request's answers is to be read: which readers, and which special tokens they need to see."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from server.output.parts import PlainReader, Reader
from server.output.reasoning_parser import ReasoningReader
from server.tool_parsers.dialects import Dialect


@dataclass(frozen=True, slots=True)
class Reading:
    """`reader` makes the reader of one choice; `kept` are special tokens whose text must not be dropped."""

    reader: Callable[[], Reader] = PlainReader
    kept: frozenset[int] = frozenset()


PLAIN = Reading()


def choose_reading(
    dialect: Dialect | None,
    *,
    single: bool,
    forced: bool,
    reasoning: bool,
    opened: bool,
    markers: Mapping[str, int | None],
) -> Reading:
    """Tool calls are read if there is a dialect; `single` ends an answer with its first call, `forced` says that it
    holds nothing else.

    `reasoning` says whether the model marks what it thinks, `opened` whether the prompt has begun it already.
    `markers` are texts that mark either, with their ids where they are control tokens.
    """
    if dialect is None and not reasoning:
        return PLAIN

    def make() -> Reader:
        answer = PlainReader() if dialect is None else dialect.reader(dialect.new_id, single=single, forced=forced)
        return ReasoningReader(answer, inside=opened) if reasoning else answer

    return Reading(make, frozenset(token for token in markers.values() if token is not None))

"""How the text of a request's answers is to be read: which readers, and which special tokens they need to see."""

from collections.abc import Callable
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
    dialect: Dialect | None, *, single: bool, reasoning: bool, opened: bool, kept: frozenset[int]
) -> Reading:
    """Tool calls are read if there is a dialect; `single` ends an answer with its first call.

    `reasoning` says whether the model marks what it thinks, `opened` whether the prompt has begun it already.
    """

    def make() -> Reader:
        answer = PlainReader() if dialect is None else dialect.reader(dialect.new_id, single=single)
        return ReasoningReader(answer, inside=opened) if reasoning else answer

    return Reading(make, kept)

"""Proves that an answer from frames of several tokens turned off where two tokens were about as likely.

The contender itself is asked for one token after what both answers share, with the reference's token favoured by less
than a frame's shape may move a logit. If that is enough to make it that token, the two were a near-tie. The first token
after a prompt is computed in the same way by every method.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from speculation.bench.analysis.cells import Answer, Cell
from speculation.bench.analysis.identity import comparable, first_difference, reference_of
from speculation.bench.configuration import BenchSettings

_FLOAT32_BIAS = 1e-3  # logits differ by 1e-5 to 1e-4 between frames of one token and of several
_HALF_BIAS = 0.25  # of bfloat16 or float16, which step by 0.125 between 16 and 32; packed weights take such rows, too


class Branch(NamedTuple):
    """Where an answer and the reference part."""

    question: str
    context: list[int]  # what they share, prompt included
    expected: int  # the reference's next token


Prefers = Callable[[Branch], bool]  # whether the contender takes the expected token once it is favoured


def bias(settings: BenchSettings) -> float:
    """By how much the reference's token is favoured, in logits."""
    dtype = settings.engine.dtype
    if dtype == "auto":
        dtype = "float32" if settings.engine.device == ("cpu",) else "bfloat16"
    packed = settings.model == "default" or settings.model.endswith(".gguf") or settings.engine.quantization is not None
    return _FLOAT32_BIAS if dtype == "float32" and not packed else _HALF_BIAS


def proven(cell: Cell, others: Sequence[Cell], prefers: Prefers, *, wide: bool = False) -> list[str]:
    """The questions of a cell whose answers differ from the reference among `others`, by a near-tie.

    Only frames of several tokens are excused: of draft-then-verify, of methods with a width of their own, and of
    whatever drafts where all are `wide`.
    """
    same = [other for other in others if comparable(other) and _at(other) == _at(cell)]
    if not (cell.key.contender.how.several or wide) or not same:
        return []
    return [branch.question for branch in _branches(cell, reference_of(same)) if prefers(branch)]


def _at(cell: Cell) -> tuple[float, str]:
    return (cell.key.temperature, cell.key.dataset)


def _branches(cell: Cell, reference: Cell) -> Iterator[Branch]:
    expected = {answer.question: answer for answer in reference.answers}
    for answer in cell.answers:
        other = expected.get(answer.question)
        place = None if other is None else first_difference(answer, other)
        if other is not None and place is not None and 0 <= place < len(other.tokens):
            yield Branch(answer.question, _shared(answer, place), other.tokens[place])


def _shared(answer: Answer, place: int) -> list[int]:
    return answer.prompt_ids + answer.tokens[:place]

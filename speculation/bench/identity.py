"""Whether all methods gave the same tokens, as they must. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from speculation.bench.cells import Answer, Cell
from speculation.bench.configuration import HUGGING_FACE, NONE, SINGLE, Contender


class Difference(msgspec.Struct, frozen=True):
    """The first place at which two answers to one prompt differ."""

    contender: Contender
    reference: Contender
    temperature: float
    dataset: str
    repeat: int
    question: str
    position: int  # of the token in the answer; -1 where the prompts differ already

    @property
    def near_tie(self) -> bool:
        """Whether the method may differ here: frames of several tokens go through kernels of other shapes."""
        return self.contender.how.rounds and self.position >= 0


def differences(cells: Iterable[Cell]) -> list[Difference]:
    """Every answer that is not that of the reference: `none` with the fewest stages, or else `single`, or the first.

    Rehearsals take no part, for their tokens mean nothing; neither does Hugging Face where it samples, for its noise
    is its own.
    """
    comparable: dict[tuple[float, str], list[Cell]] = {}
    for cell in cells:
        sampled_elsewhere = cell.key.contender.method == HUGGING_FACE and cell.key.temperature > 0
        if not cell.rehearsal and not sampled_elsewhere:
            comparable.setdefault((cell.key.temperature, cell.key.dataset), []).append(cell)
    found = []
    for same in comparable.values():
        reference = min(same, key=_rank)
        for cell in same:
            found += _compare(cell, reference)
    return found


def _rank(cell: Cell) -> tuple[int, Contender, int]:
    order = {NONE: 0, SINGLE: 1}
    return (order.get(cell.key.contender.method, 2), cell.key.contender, cell.key.repeat)


def _compare(cell: Cell, reference: Cell) -> list[Difference]:
    expected = {answer.question: answer for answer in reference.answers}
    key = cell.key
    return [
        Difference(
            key.contender,
            reference.key.contender,
            key.temperature,
            key.dataset,
            key.repeat,
            answer.question,
            position,
        )
        for answer in cell.answers
        if answer.question in expected and (position := first_difference(answer, expected[answer.question])) is not None
    ]


def first_difference(answer: Answer, expected: Answer) -> int | None:
    """Position of the first token that differs, -1 where the prompts differ, None where nothing does."""
    if answer.prompt_ids != expected.prompt_ids:
        return -1
    return _first_unequal(answer.tokens, expected.tokens)


def _first_unequal(left: Sequence[int], right: Sequence[int]) -> int | None:
    for position, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))

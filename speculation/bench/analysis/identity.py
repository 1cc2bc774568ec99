"""Whether all methods gave the same tokens, as they must. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from speculation.bench.analysis.cells import Answer, Cell
from speculation.bench.configuration import HUGGING_FACE, LLAMA_CPP, NONE, SINGLE, Contender


class Difference(msgspec.Struct, frozen=True):
    """The first place at which two answers to one prompt differ."""

    contender: Contender
    reference: Contender
    temperature: float
    dataset: str
    repeat: int
    question: str
    position: int  # of the token in the answer; -1 where the prompts differ already
    near_tie: bool  # proven (`speculation.bench.near_ties`); of draft-then-verify only


def differences(cells: Iterable[Cell]) -> list[Difference]:
    """Every answer that is not that of the reference."""
    groups: dict[tuple[float, str], list[Cell]] = {}
    for cell in cells:
        if comparable(cell):
            groups.setdefault((cell.key.temperature, cell.key.dataset), []).append(cell)
    found = []
    for same in groups.values():
        reference = reference_of(same)
        for cell in same:
            found += _compare(cell, reference)
    return found


def comparable(cell: Cell) -> bool:
    """Whether its tokens should be the others': not in a rehearsal, and not of those that sample or round otherwise.

    Hugging Face has noise of its own, and llama.cpp rounds what it multiplies with packed weights to eight bits.
    """
    method = cell.key.contender.method
    elsewhere = method == LLAMA_CPP or (method == HUGGING_FACE and cell.key.temperature > 0)
    return not cell.rehearsal and not elsewhere


def reference_of(cells: Sequence[Cell]) -> Cell:
    """The cell the others must agree with: `none` with the fewest stages, else `single`, else of one token a frame."""
    return min(cells, key=_rank)


def _rank(cell: Cell) -> tuple[int, Contender, int]:
    order = {NONE: 0, SINGLE: 1}
    last = 3 if cell.key.contender.how.several else 2
    return (order.get(cell.key.contender.method, last), cell.key.contender, cell.key.repeat)


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
            near_tie=position >= 0 and answer.question in cell.near_ties,
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

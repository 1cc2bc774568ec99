"""Frames: the only thing that moves through the pipeline (docs/design.md, "Frames and epochs", "Branches")."""

from collections.abc import Sequence
from itertools import product, starmap
from typing import Annotated, NamedTuple

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0)]

REAL = -1  # stands for a slot: keys and values are in the row of the token's own position


class Shape(NamedTuple):
    """What decode frames may hold."""

    width: int = 1  # positions: of one token verified or drafted, and of the drafts behind it
    breadth: int = 1  # drafts at each position

    @property
    def rows(self) -> int:
        """Most tokens of a frame."""
        return self.width * self.breadth

    @property
    def scratch(self) -> int:
        """Most drafts of a frame that cannot have the row of their position."""
        return self.width * (self.breadth - 1)

    def covers(self, other: "Shape") -> bool:
        """Whether it is as wide as the other, and as broad."""
        return self.width >= other.width and self.breadth >= other.breadth


def shapes_of(widths: Sequence[int], breadths: Sequence[int], rows: int) -> tuple[Shape, ...]:
    """Every width with every breadth: the first in any case, and of the others those with at most so many `rows`."""
    least, *others = starmap(Shape, product(widths, breadths))
    return least, *(shape for shape in others if shape.rows <= rows)


def scratch_of(shapes: Sequence[Shape], frames: int) -> int:
    """Drafts that share their position with a likelier one, in so many frames of any shape and one that waits."""
    return max(shape.scratch for shape in shapes) * (frames + 1)


Move = tuple[int, int]  # from a scratch slot to the row of a position
Path = tuple[int, ...]  # the slot of each token behind the frame's base on the way to a row, itself included


class Branches(NamedTuple):
    """How the rows of a frame stand that do not just follow each other."""

    base: int  # positions before it are final, and in real rows
    paths: tuple[Path, ...]  # of each row

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.base + max(map(len, self.paths))


class TokenPlace(NamedTuple):
    """Where the keys and values of a token are. No two tokens that may still count are in one place."""

    position: int
    slot: int = REAL  # of the scratch rows


class Frame(msgspec.Struct, frozen=True, array_like=True, tag="frame"):
    """Consecutive tokens of one sequence on their way through every stage.

    One drafted token is a frame of one token, a prompt chunk is a frame of many. Every announced frame crosses every
    edge exactly once, in announcement order, whether it is still alive or not.
    """

    index: Natural  # announcement number, counted over the life of the engine
    sequence: Natural  # KV slot
    epoch: Natural  # frames of an older epoch than the newest one heard of are dead
    position: Natural  # of the first token
    tokens: tuple[int, ...]
    wants_sample: bool  # whether the last stage samples the token after this frame

    @property
    def end(self) -> int:
        """Position after the last token: the length of the sequence once this frame is computed."""
        return self.position + len(self.tokens)

    @property
    def committed(self) -> Sequence[Move]:
        """Rows of scratch that every stage moves before it comes to this frame, be it dead or alive."""
        return ()

    @property
    def seen(self) -> int:
        """Positions, from 0, whose real rows every row of this frame sees."""
        return self.position

    @property
    def branches(self) -> Branches | None:
        """How the rows stand; None where they follow each other."""
        return None

    def place(self, row: int) -> TokenPlace:
        """Where the keys and values of a row go."""
        return TokenPlace(self.position + row)

    def children(self, place: TokenPlace) -> Sequence[int]:
        """The rows that follow the token at `place`."""
        row = place.position + 1 - self.position
        return (row,) if place.slot == REAL and 0 <= row < len(self.tokens) else ()

    def follower(self, place: TokenPlace, token: int) -> int | None:
        """The row that follows the one at `place` and holds `token`, if there is one."""
        return next((row for row in self.children(place) if self.tokens[row] == token), None)

    def reachable(self, row: int) -> Sequence[int]:
        """`row`, and what may follow it within the frame."""
        return range(row, len(self.tokens))

    def __str__(self) -> str:
        return (
            f"frame {self.index} (sequence {self.sequence}, epoch {self.epoch}, "
            f"positions {self.position}..{self.end - 1})"
        )


class TreeFrame(Frame, frozen=True, array_like=True, tag="tree"):
    """Drafts of one sequence of which several may stand at one position; or a frame with moves to make before it.

    Rows are nodes of a tree, in order of their positions. Of those at one position, one is written where it will stay
    if it is right, and the others to slots of scratch.
    """

    moves: tuple[Move, ...] = ()
    base: Natural = 0  # tokens before this position are final, and in real rows; of use with `paths`
    paths: tuple[Path, ...] = ()  # of every row; none: the rows follow each other, as in any other frame

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.base + len(self.paths[-1]) if self.paths else super().end

    @property
    def committed(self) -> Sequence[Move]:
        """See `Frame`."""
        return self.moves

    @property
    def seen(self) -> int:
        """See `Frame`."""
        return self.base if self.paths else self.position

    @property
    def branches(self) -> Branches | None:
        """See `Frame`."""
        return Branches(self.base, self.paths) if self.paths else None

    def place(self, row: int) -> TokenPlace:
        """See `Frame`."""
        if not self.paths:
            return super().place(row)
        path = self.paths[row]
        return TokenPlace(self.base + len(path) - 1, path[-1])

    def children(self, place: TokenPlace) -> Sequence[int]:
        """See `Frame`."""
        if not self.paths:
            return super().children(place)
        length = place.position + 2 - self.base
        return [
            row
            for row, path in enumerate(self.paths)
            if len(path) == length and (path[-2] if length > 1 else REAL) == place.slot
        ]

    def reachable(self, row: int) -> Sequence[int]:
        """See `Frame`."""
        if not self.paths:
            return super().reachable(row)
        path = self.paths[row]
        return [other for other, longer in enumerate(self.paths) if longer[: len(path)] == path]

"""The drafts of one sequence that may still turn out right, as a tree. No torch, no sockets, no clock.

Its root is the newest verified token. With one draft a position it is a chain, and nothing here costs more than that.
Each node has a place for its keys and values: of those at one position, the first has the row of the position, and the
others get slots of scratch. See docs/design.md, "Branches".
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from workers.shared.frames import REAL, Move, Path


class Draft(NamedTuple):
    """A guess: candidates for one position, the best first. The first is the draft, where there is to be one."""

    candidates: tuple[int, ...]
    confidence: float | None = None  # probability of the first, as the drafter sees it
    probabilities: tuple[float, ...] = ()  # of the candidates, shaped as the request samples; greedy: none
    chances: tuple[float, ...] = ()  # of each candidate to be the token, given the noise; none: not known

    @property
    def token(self) -> int:
        """The draft."""
        return self.candidates[0]

    def rank(self, token: int) -> int | None:
        """The place of a token among the candidates, from 0; None where it is none."""
        return self.candidates.index(token) if token in self.candidates else None


class Guess(NamedTuple):
    """What was drafted behind a node."""

    draft: Draft
    depth: int  # tokens that had to be right for the first candidate to be, itself included


@dataclass(slots=True, eq=False)
class Node:
    """The newest verified token, or a draft that stands behind it."""

    token: int
    position: int
    parent: "Node | None" = None
    score: float = 0.0  # logarithm of the probability that it and all drafts before it are right
    confidence: float | None = None  # probability that it is right, where those before it are, as the drafter sees it
    slot: int = REAL
    children: "list[Node]" = field(default_factory=list)
    guess: Guess | None = None  # what `children` were taken from

    def child(self, token: int) -> "Node | None":
        """The draft of `token` behind this node."""
        return next((child for child in self.children if child.token == token), None)

    def path(self, behind: int) -> "list[Node]":
        """The nodes from position `behind` on down to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.position >= behind:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class Shoot(NamedTuple):
    """A draft that is to be made a node."""

    parent: Node
    token: int
    score: float = 0.0
    confidence: float | None = None


class Tree:
    """The root and, level by level, the nodes at each position behind it. No level is empty."""

    def __init__(self, slots: int) -> None:
        """There are so many rows of scratch."""
        self.levels: deque[list[Node]] = deque()
        self.moves: list[Move] = []  # of tokens that were verified in scratch; the next frame carries them
        self._free = list(range(slots))

    @property
    def root(self) -> Node | None:
        """The newest verified token; None before the first."""
        return self.levels[0][0] if self.levels else None

    @property
    def drafts(self) -> int:
        """Nodes behind the root."""
        return sum(map(len, self.levels)) - 1 if self.levels else 0

    @property
    def branched(self) -> bool:
        """Whether any draft is in scratch."""
        return any(node.slot != REAL for level in self.levels for node in level)

    def room(self, level: Sequence[Node]) -> int:
        """Drafts that there is a place for at the position of a level: in scratch, and one in the row of its own."""
        return len(self._free) + all(node.slot != REAL for node in level)

    def plant(self, token: int, position: int) -> int:
        """A verified token that nobody drafted becomes the root, alone; returns how many drafts were there."""
        lost = self.drafts
        self._drop(node for level in self.levels for node in level)
        self.levels = deque([[Node(token, position)]])
        return lost

    def clear(self) -> int:
        """Nothing is left, and what was verified in scratch is of no use; returns how many drafts were there."""
        lost = self.drafts
        self._drop(node for level in self.levels for node in level)
        self._free += [slot for slot, _ in self.moves]
        self.levels.clear()
        self.moves.clear()
        return lost

    def advance(self, child: Node, *, sent: bool = True) -> int:
        """A child of the root is verified: what does not descend from it goes; returns how many nodes went.

        From here on its place is the row of its position. `sent`: stages have put it where it was.
        """
        before = self.drafts
        self.levels.popleft()
        kept = [child]
        for depth, level in enumerate(self.levels):
            if depth:
                kept = [node for node in level if node.parent in kept]
            if len(kept) < len(level):
                self._drop(node for node in level if node not in kept)
                self.levels[depth] = kept
        while not self.levels[-1]:
            self.levels.pop()
        if child.slot != REAL:
            if sent:
                self.moves.append((child.slot, child.position))
            else:
                self._free.append(child.slot)
            child.slot = REAL
        child.parent = None
        return before - 1 - self.drafts

    def grow(self, shoots: Sequence[Shoot]) -> None:
        """Adds a level: `shoots` are behind nodes of the last one, best first, no two alike."""
        self.levels.append([])
        self.widen(shoots)

    def widen(self, shoots: Sequence[Shoot]) -> None:
        """Adds `shoots` to the last level: behind nodes of the one before, best first, none that is there already."""
        level = self.levels[-1]
        for parent, token, score, confidence in shoots:
            slot = self._free.pop() if any(node.slot == REAL for node in level) else REAL
            node = Node(token, parent.position + 1, parent, score, confidence, slot)
            parent.children.append(node)
            level.append(node)

    def take(self, start: int, end: int) -> tuple[list[Node], tuple[Move, ...]]:
        """The nodes at positions `start` to `end`, for a frame that also carries the moves, which are returned too."""
        first, moves = self.levels[0][0].position, tuple(self.moves)
        self._free += [slot for slot, _ in moves]
        self.moves.clear()
        return [node for position in range(start, end) for node in self.levels[position - first]], moves

    @staticmethod
    def paths(nodes: Sequence[Node], base: int) -> tuple[Path, ...]:
        """Of each node, the slots from position `base` on."""
        return tuple(tuple(node.slot for node in last.path(base)) for last in nodes)

    def _drop(self, nodes: Iterator[Node]) -> None:
        self._free += [node.slot for node in nodes if node.slot != REAL]

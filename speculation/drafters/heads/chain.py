"""Drafts one after the other, each from the output for the one before (EAGLE-3, and heads for multi-token prediction).

The first draft follows from the newest feature. Each further one takes a row of its own, whose feature is the output of
the row before: with branches, of the draft that it stands behind. When a feature arrives, what was made with outputs in
its place is made anew.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.decisions.drafts.tree import Node
from speculation.drafters.base import Start
from speculation.drafters.heads.verified import VerifiedStatesDrafter
from speculation.heads.runtime import HeadRuntime
from speculation.taps import TapBuffer
from workers.shared.messages import Sampling


class ChainDrafter(VerifiedStatesDrafter):
    """One pass for the draft at a position, or for all of them, beside those that arrived features call for."""

    def __init__(self, runtime: HeadRuntime, taps: TapBuffer, vocab_size: int, *, branches: bool = False) -> None:
        super().__init__(runtime, taps, vocab_size, branches=branches)
        self._leaves: Sequence[Node] = ()  # what the next drafts are to follow
        self._base = -1  # position of the newest verified token when these were computed:
        self._outputs: dict[Node, Tensor] = {}  # of drafts' rows, each [1, width]
        self._foreseen: dict[tuple[int, ...], Tensor] = {}  # logits behind the leaves, by the drafts that end with them

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Nothing is known of this text."""
        super().begin(prompt, sampling, start)
        self._base = -1

    def level(self, tokens: Sequence[int], verified: int, leaves: Sequence[Node]) -> None:
        """Notes them: nothing is computed that nobody asks for."""
        self._leaves = leaves
        self._foreseen.clear()

    def _scores(self, drafts: Sequence[int], base: int) -> Tensor:
        if not self._foreseen:
            self._compute(base)
        return self._foreseen[tuple(drafts)]

    def _compute(self, base: int) -> None:
        """Rows of the drafts on the way to the leaves that have none yet, and what follows each leaf."""
        self._catch_up(base)
        if base != self._base:
            self._base = base
            self._outputs.clear()
        paths = [leaf.path(base + 1) for leaf in self._leaves]
        for level in zip(*paths, strict=True):
            if fresh := [node for node in dict.fromkeys(level) if node not in self._outputs]:
                self._outputs.update(zip(fresh, torch.split(self._rows(fresh, base), 1), strict=True))
        with torch.inference_mode():
            logits = self._head.logits(torch.cat([self._output(leaf) for leaf in self._leaves]))
        ends = [tuple(node.token for node in path) for path in paths]
        self._foreseen = dict(zip(ends, logits, strict=True))

    def _rows(self, nodes: Sequence[Node], base: int) -> Tensor:
        """Outputs `[nodes, width]` of drafts at one position, those before which have their rows."""
        with torch.inference_mode():
            features = self._head.fed_back(torch.cat([self._output(node.parent) for node in nodes]))
        slots = [tuple(one.slot for one in node.path(base + 1)) for node in nodes]
        return self._runtime.run_level(base, slots, [node.token for node in nodes], features)

    def _output(self, node: Node | None) -> Tensor:
        """Of the row that `node` ends, `[1, width]`: of a draft, or of the newest verified token."""
        held = None if node is None else self._outputs.get(node)
        return self._last if held is None else held

"""Hidden states of drafts that branch: kept by draft until one of them is the text, and then by position."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.decisions.drafts.tree import Node
from speculation.taps import TapBuffer
from workers.shared.messages import Tap

_FRAMES = 256  # more than are ever in flight: taps of an older frame have come


class NodeTaps:
    """What stages have sent of drafts, which a `TapBuffer` gets as they are verified.

    Invariant: of each draft that may still be right, all that has arrived is held.
    """

    def __init__(self, taps: TapBuffer) -> None:
        self._taps = taps
        self._rows: OrderedDict[int, Sequence[Node]] = OrderedDict()  # of frames, by announcement number
        self._states: dict[Node, Tensor] = {}  # [columns, H]
        self._from: dict[Node, dict[int, int]] = {}  # epochs of the frames, by stage

    def clear(self, *, request: bool) -> None:
        """All drafts are dead; with `request`, what is still on its way is of one that has ended."""
        self._states.clear()
        self._from.clear()
        if request:
            self._rows.clear()

    def sent(self, index: int, nodes: Sequence[Node]) -> None:
        """The rows of a frame that is announced."""
        self._rows[index] = nodes
        if len(self._rows) > _FRAMES:
            self._rows.popitem(last=False)

    def store(self, tap: Tap) -> None:
        """Keeps a tap's rows: those of verified tokens in their positions."""
        nodes = self._rows.get(tap.frame)
        if nodes is None:
            self._taps.store(tap)
            return
        for node, row in zip(nodes, self._taps.unpack(tap), strict=True):
            if node.parent is None:  # the text's
                self._taps.put(tap.stage, tap.epoch, node.position, row)
                continue
            held = self._states.get(node)
            if held is None:
                held = self._states[node] = torch.zeros_like(self._taps.states[0])
            held[self._taps.columns[tap.stage]] = row.to(held)
            self._from.setdefault(node, {})[tap.stage] = tap.epoch

    def chosen(self, node: Node) -> None:
        """A draft is verified: what is held of it goes to its position; of drafts beside it, nothing is kept."""
        states = self._states.get(node)
        for stage, epoch in self._from.get(node, {}).items():
            assert states is not None
            self._taps.put(stage, epoch, node.position, states[self._taps.columns[stage]])
        for other in [other for other in self._from if other.position <= node.position]:
            del self._from[other], self._states[other]

    def has(self, node: Node, columns: int) -> bool:
        """Whether the first so many columns of a draft are held, as far as stages fill them."""
        got = self._from.get(node, {})
        return all(stage in got for stage, places in self._taps.columns.items() if places[0] < columns)

    def states(self, node: Node, embedding: Tensor) -> Tensor:
        """Of a draft `[columns, H]`, with its `embedding` `[H]` in the first column; what is not held is zero."""
        held = self._states.get(node)
        held = torch.zeros_like(self._taps.states[0]) if held is None else held
        held[0] = embedding
        return held

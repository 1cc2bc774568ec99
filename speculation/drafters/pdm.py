"""Draft modules and exit heads as drafters: they draft from hidden states of tokens that are still in the pipeline.

Taps arrive whenever they arrive; a draft waits for exactly those that its rows own (docs/design.md, "The draft
module"), so what is drafted does not depend on timing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.decisions.drafts.tree import Node
from speculation.decisions.taps import columns_of_stages
from speculation.drafters.base import PENDING, Answer, Draft, Drafter, Start, chunk_end
from speculation.drafters.candidates import draft_from
from speculation.node_taps import NodeTaps
from speculation.pdm.module import DraftModule
from speculation.pdm.runtime import DraftRuntime
from speculation.taps import TapBuffer
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.messages import Sampling, Tap

_ROWS_AHEAD = 64  # prompt rows in one go: rank 0 must not be away for long


class PdmDrafter(Drafter):
    """Collects anchors and runs the module when those of a draft are complete."""

    def __init__(
        self, runtime: DraftRuntime, embedding: Tensor, module: DraftModule, capacity: int, *, branches: bool = False
    ) -> None:
        """`runtime` holds the module's persistent rows; `embedding` is the target's table `[V, H]`.

        With `branches`, several drafts may be asked for at one position, and `runtime` has the scratch for them.
        """
        vocab_size, features = module.config.vocab_size, runtime.features
        self.anchors = features.read
        self._runtime = runtime
        self._embedding = embedding
        self._draft_to_target = module.draft_to_target
        self._sampler = Sampler(vocab_size, embedding.device)
        self._logits = torch.full((vocab_size,), -torch.inf, device=embedding.device)
        shape = (capacity, 1 + len(features.read), embedding.shape[1])
        columns = columns_of_stages((0, *features.read), features.split)
        self._taps = TapBuffer(columns, shape, embedding.dtype, embedding.device)  # anchors; the embedding is made here
        self._nodes = NodeTaps(self._taps) if branches else None
        self._foreseen: dict[tuple[int, ...], Tensor] = {}  # logits behind drafts, of the level at hand
        self._embedded = 0  # positions whose column 0 is filled
        self._sampling = Sampling(seed=0)
        self._history = History(0, self._sampling)  # of the newest draft
        self._prompt_tokens = 0
        self._verified = 0

    def kept(self) -> int | None:
        """Positions whose anchors have all arrived."""
        return self._taps.filled()

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Embeds the prompt and forgets everything but what is reused."""
        if (source := start.copies_from(PdmDrafter)) is not None:
            self._copy(source, start.reused)
        self._runtime.reset(start.reused)
        self._taps.ledger.begin(start.epoch, start.reused)
        if self._nodes is not None:
            self._nodes.clear(request=True)
        self._embedded = min(self._embedded, start.reused)
        self._sampling = sampling
        self._history = History(len(prompt), sampling)
        self._prompt_tokens = len(prompt)
        self._verified = 0
        self._embed(prompt, len(prompt))

    def rejected(self, position: int, epoch: int) -> None:
        """Whatever was tapped from `position` on belongs to dead drafts."""
        self._taps.ledger.rejected(position, epoch)
        if self._nodes is not None:
            self._nodes.clear(request=False)
        self._embedded = min(self._embedded, position)
        self._runtime.rejected(position)

    def tap(self, tap: Tap) -> None:
        """Stores hidden states."""
        if self._nodes is None:
            self._taps.store(tap)
        else:
            self._nodes.store(tap)

    def sent(self, frame: int, nodes: Sequence[Node]) -> None:
        """Notes whose hidden states will come."""
        if self._nodes is not None and nodes:
            self._nodes.sent(frame, nodes)

    def chosen(self, node: Node, slot: int) -> None:
        """What has come of it is the text's."""
        if self._nodes is not None:
            self._nodes.chosen(node)

    def level(self, tokens: Sequence[int], verified: int, leaves: Sequence[Node]) -> None:
        """Drafts behind all leaves in one pass, once the anchors of all that lead to them are here."""
        held = self._nodes
        self._foreseen.clear()
        if held is None or self._runtime.cached < self._prompt_tokens:
            return
        paths = [leaf.path(verified) for leaf in leaves]
        nodes = sorted(dict.fromkeys(node for path in paths for node in path), key=lambda node: node.position)
        plan = self._runtime.plan(self._origin(), verified - 1 + len(paths[0]))
        depths = {row.position: row.depth for row in plan.rows}
        if any(self._filled(depth) <= position for position, depth in depths.items() if position < verified):
            return
        if not all(held.has(node, self._runtime.features.kind(depths[node.position]) + 1) for node in nodes):
            return
        self._embed(tokens, verified)
        states = [held.states(node, self._embedding[node.token]) for node in nodes]
        anchors = torch.cat([self._taps.rows(plan.rows[0].position, verified), *(state[None] for state in states)])
        logits = self._runtime.draft_level(plan, verified, nodes, leaves, anchors)
        for path, found in zip(paths, logits, strict=True):
            self._foreseen[tuple(node.token for node in path)] = found

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Notes how many tokens are final, and embeds the newest."""
        self._verified = count
        if not self._taps.ledger.deaf:
            self._embed(tokens, count)

    def deafen(self) -> None:
        """Nothing is kept from here on."""
        self._taps.ledger.deafen()

    def frames(self, width: int) -> None:
        """Rows of drafts to come are those of frames of so many tokens."""
        self._runtime.width = width

    def advance(self) -> bool:
        """Computes persistent rows of finished tokens: the prompt's, and those left behind while nobody asked."""
        start = self._runtime.cached
        end = chunk_end(start, self._prompt_tokens, _ROWS_AHEAD)
        finished = max(self._prompt_tokens, self._verified - self._runtime.lag)
        if end > min(finished, self._taps.filled()):
            return False
        self._runtime.extend(self._taps.rows(start, end))
        return True

    def draft(self, tokens: Sequence[int]) -> Answer:
        """Candidates by the module's logits, shaped and ordered as the request samples, once the anchors are here."""
        if self._runtime.cached < self._prompt_tokens:
            return PENDING
        if self._nodes is not None:
            foreseen = self._foreseen.pop(tuple(tokens[self._verified :]), None)
            return PENDING if foreseen is None else self._drafted(foreseen, tokens)
        newest = len(tokens) - 1
        plan = self._runtime.plan(self._origin(), newest)
        if any(self._filled(row.depth) <= row.position for row in plan.rows):
            return PENDING
        self._embed(tokens, len(tokens))
        first = plan.rows[0].position
        return self._drafted(self._runtime.draft(plan, self._taps.rows(first, newest + 1)), tokens)

    def _drafted(self, logits: Tensor, tokens: Sequence[int]) -> Draft:
        """The draft behind `tokens` by the module's `logits` `[draft vocabulary]`."""
        self._logits[self._draft_to_target] = logits
        self._history.follow(tokens, self._verified)
        branches = self._nodes is not None
        return draft_from(self._logits, self._sampler, self._sampling, len(tokens), self._history, chances=branches)

    def _copy(self, source: "PdmDrafter", positions: int) -> None:
        """Takes over what the drafter of another slot has of its first `positions`."""
        self._taps.copy(source._taps, positions)
        self._runtime.copy(source._runtime, positions)
        self._embedded = source._embedded

    def _origin(self) -> int:
        """First position of the epoch, for the rows' depths: the prompt's own frames are finished."""
        return max(self._taps.ledger.origin, self._prompt_tokens)

    def _embed(self, tokens: Sequence[int], count: int) -> None:
        if self._embedded < count:
            ids = torch.tensor(tokens[self._embedded : count], device=self._embedding.device)
            self._taps.states[self._embedded : count, 0] = self._embedding[ids]
            self._embedded = count

    def _filled(self, depth: int) -> int:
        """Positions for which everything that a token of `depth` owns is here."""
        return self._taps.filled(self._runtime.features.kind(depth) + 1)

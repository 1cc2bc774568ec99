"""A small model of the target's vocabulary as a drafter: whole, on the speculation rank.

Its KV cache is written by position, like a stage's. So rollback is forgetting what the cache holds from a position on,
and catching up (after a rejection, or after tokens that something else drafted) is one frame up to the newest token.
"""

from collections.abc import Sequence

import torch

from speculation.decisions.drafts.tree import Node
from speculation.drafters.base import PENDING, Answer, Drafter, Start, chunk_end
from speculation.drafters.candidates import draft_from
from workers.model.shard import Shard
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.frames import REAL, Branches
from workers.shared.messages import Sampling

_ROWS_AHEAD = 32  # tokens in one go: rank 0 must not be away for long


class ModelDrafter(Drafter):
    """Picks as the target's sampler does: the request's parameters, the same noise, its own logits."""

    def __init__(self, shard: Shard, vocab_size: int, capacity: int, slot: int, *, branches: bool = False) -> None:
        """`shard` holds all layers of the model and, of its KV slots of `capacity` positions, `slot` is this one's.

        With `branches` it has as much scratch as the stages', and several drafts may be asked for at one position.
        """
        self._shard = shard
        self._slot = slot
        self._capacity = capacity
        self._branches = branches
        self._sampler = Sampler(vocab_size, shard.device)
        self._held: list[int] = []  # the tokens whose keys and values are in the slot
        self._sampling = Sampling(seed=0)
        self._final: list[int] = []  # prompt and verified tokens
        self._history = History(0, self._sampling)  # of the newest draft
        self._prompt_tokens = 0
        self._computed: set[Node] = set()  # drafts whose keys and values are where they say
        self._foreseen: dict[tuple[int, ...], torch.Tensor] = {}  # logits behind drafts, of the level at hand

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Takes over what is still held of this prompt, here or in another slot, which may be more than is reused."""
        common = self._common(prompt)
        source = start.copies_from(ModelDrafter) if self._shard.lends else None
        if source is not None and (more := source._common(prompt)) > common:
            self._shard.copy(source._slot, self._slot, more)
            self._held, common = list(prompt), more
        self.rejected(common, start.epoch)
        self._sampling = sampling
        self._final = list(prompt)
        self._history = History(len(prompt), sampling)
        self._prompt_tokens = len(prompt)

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Notes the newest verified token."""
        self._final.append(tokens[count - 1])

    def rejected(self, position: int, epoch: int) -> None:
        """What was computed from `position` on is to be written anew."""
        del self._held[position:]
        self._computed.clear()
        self._foreseen.clear()

    def chosen(self, node: Node, slot: int) -> None:
        """Puts its keys and values where those of the text are, if there are any."""
        if node not in self._computed or len(self._held) < node.position:
            return
        if slot != REAL:
            self._shard.move(self._slot, [(slot, node.position)])
        self._held[node.position :] = [node.token]

    def level(self, tokens: Sequence[int], verified: int, leaves: Sequence[Node]) -> None:
        """Computes what is new on the way to the leaves at once, each row seeing its own branch."""
        self._foreseen.clear()
        paths = [leaf.path(verified) for leaf in leaves]
        chain = all(node.slot == REAL for path in paths for node in path)
        if chain or self._chunk_end() is not None or verified + len(paths[0]) > self._capacity:
            return
        if len(self._held) < verified:
            self._compute(tokens, verified)
        on_the_way = dict.fromkeys(node for path in paths for node in path[:-1])
        rows = [*(node for node in on_the_way if node not in self._computed), *leaves]
        rows.sort(key=lambda node: node.position)
        branches = Branches(verified, tuple(tuple(n.slot for n in node.path(verified)) for node in rows))
        hidden = self._shard.forward(self._slot, verified, [node.token for node in rows], None, None, branches)
        del self._held[verified:]
        self._computed = {*on_the_way, *leaves}
        logits = self._shard.row_logits(hidden[[rows.index(leaf) for leaf in leaves]])
        for path, found in zip(paths, logits, strict=True):
            self._foreseen[tuple(node.token for node in path)] = found

    def advance(self) -> bool:
        """Computes one chunk of what is final: the prompt's, and of what was left behind while nobody asked."""
        end = self._chunk_end()
        if end is None:
            return False
        self._compute(self._final, end)
        return True

    def draft(self, tokens: Sequence[int]) -> Answer:
        """Candidates for the next position; pending while it is behind by whole chunks, none past its context."""
        count = len(tokens)
        if count > self._capacity:
            return None
        if self._chunk_end() is not None:
            return PENDING
        logits = self._foreseen.pop(tuple(tokens[len(self._final) :]), None)
        if logits is None:
            logits = self._shard.logits(self._compute(tokens, count))
        self._history.follow(tokens, len(self._final))
        return draft_from(logits, self._sampler, self._sampling, count, self._history, chances=self._branches)

    def _common(self, prompt: Sequence[int]) -> int:
        """Leading positions of `prompt` that are held."""
        most = min(len(self._held), len(prompt))
        return next((place for place in range(most) if self._held[place] != prompt[place]), most)

    def _chunk_end(self) -> int | None:
        """Where the next chunk ends; None where less is left than a chunk."""
        end = chunk_end(len(self._held), self._prompt_tokens, _ROWS_AHEAD)
        return end if end <= min(len(self._final), self._capacity) else None

    def _compute(self, tokens: Sequence[int], end: int) -> torch.Tensor:
        """Hidden states `[rows, H]` of the tokens before `end` that are not held; of the last one in any case."""
        start = min(len(self._held), end - 1)
        hidden = self._shard.forward(self._slot, start, tokens[start:end], None)
        self._held[start:] = tokens[start:end]
        return hidden

"""What drafters share that make a draft from hidden states of verified tokens alone.

A draft is made from the features of every verified token but the newest, which is in no frame yet or in the first one
in flight. It waits for exactly those, whether one frame holds a whole round of drafts or every stage holds a frame.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.decisions.drafts.tree import Node
from speculation.drafters.base import PENDING, Answer, Drafter, Start, chunk_end
from speculation.drafters.candidates import draft_from
from speculation.heads.runtime import HeadRuntime
from speculation.node_taps import NodeTaps
from speculation.taps import TapBuffer
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.messages import Sampling, Tap

_ROWS_AHEAD = 64  # rows in one go: rank 0 must not be away for long


class VerifiedStatesDrafter(Drafter):
    """Computes one persistent row for each verified pair of feature and next token, and drafts behind the last."""

    def __init__(self, runtime: HeadRuntime, taps: TapBuffer, vocab_size: int, *, branches: bool = False) -> None:
        """`runtime` and `taps` are this slot's; `vocab_size` is the target's.

        With `branches`, several drafts may be asked for at one position, and `runtime` has the scratch for them.
        """
        head = runtime.head
        self.anchors = head.anchors
        self._head = head
        self._runtime = runtime
        self._taps = taps
        self._nodes = NodeTaps(taps)
        self._branches = branches
        self._sampler = Sampler(vocab_size, head.device)
        self._logits = torch.full((vocab_size,), -torch.inf, device=head.device)
        self._final: list[int] = []  # prompt and verified tokens
        self._prompt_tokens = 0
        self._sampling = Sampling(seed=0)
        self._history = History(0, self._sampling)  # of the newest draft
        self._last = torch.empty(0)  # output of the last persistent row, [1, width]

    @abstractmethod
    def _scores(self, drafts: Sequence[int], base: int) -> Tensor:
        """Logits, float32 `[draft vocabulary]`, of the token after `drafts`, which stand behind the newest verified
        token, at `base`; the features before that are here."""

    def kept(self) -> int | None:
        """Positions whose hidden states have all arrived."""
        return self._taps.filled()

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Forgets everything but what is reused: of the last position of that, the row is of another next token."""
        if (source := start.copies_from(type(self))) is not None:
            self._taps.copy(source._taps, start.reused)
            self._runtime.copy(source._runtime, start.reused)
        self._taps.ledger.begin(start.epoch, start.reused)
        self._nodes.clear(request=True)
        self._runtime.reset(max(0, start.reused - 1))
        self._final = list(prompt)
        self._prompt_tokens = len(prompt)
        self._sampling = sampling
        self._history = History(len(prompt), sampling)

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Notes the newest verified token."""
        self._final.append(tokens[count - 1])

    def rejected(self, position: int, epoch: int) -> None:
        """Whatever was tapped from `position` on belongs to dead drafts."""
        self._taps.ledger.rejected(position, epoch)
        self._nodes.clear(request=False)

    def tap(self, tap: Tap) -> None:
        """Stores hidden states."""
        self._nodes.store(tap)

    def sent(self, frame: int, nodes: Sequence[Node]) -> None:
        """Notes whose hidden states will come."""
        if nodes:
            self._nodes.sent(frame, nodes)

    def chosen(self, node: Node, slot: int) -> None:
        """What has come of it is the text's."""
        self._nodes.chosen(node)

    def deafen(self) -> None:
        """Nothing is kept from here on."""
        self._taps.ledger.deafen()

    def advance(self) -> bool:
        """Computes one chunk of persistent rows: the prompt's, and those left behind while nobody asked."""
        end = chunk_end(self._runtime.cached, self._prompt_tokens - 1, _ROWS_AHEAD)
        if end > min(len(self._final) - 1, self._taps.filled()):
            return False
        self._catch_up(end)
        return True

    def draft(self, tokens: Sequence[int]) -> Answer:
        """Candidates by the head's logits, shaped and ordered as the request samples, once the features are here."""
        base = len(self._final) - 1
        if self._taps.filled() < base or base - self._runtime.cached > _ROWS_AHEAD:
            return PENDING
        self._logits[self._head.draft_to_target] = self._scores(tokens[base + 1 :], base)
        self._history.follow(tokens, len(self._final))
        return draft_from(
            self._logits, self._sampler, self._sampling, len(tokens), self._history, chances=self._branches
        )

    def _catch_up(self, end: int, more: Tensor | None = None, token: int = 0) -> Tensor | None:
        """Computes the persistent rows before `end`, and behind them rows of `token` with the features `more`
        `[rows, width]`, whose outputs it returns."""
        start, states = self._runtime.cached, self._taps.states
        rows = end - start
        extra = 0 if more is None else len(more)
        if rows + extra == 0:
            return None
        with torch.inference_mode():
            parts = [self._head.features(states[start:end])] if rows else []
            features = torch.cat(parts if more is None else [*parts, more])
        outputs = self._runtime.run(start, [*self._final[start + 1 : end + 1], *[token] * extra], features)
        if rows:
            self._last = outputs[rows - 1 : rows]
            self._runtime.cached = end
        return outputs[rows:]

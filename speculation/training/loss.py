"""Distillation loss: forward KL from the target's distribution, on the draft vocabulary."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from speculation.pdm.module import capped
from speculation.training.teacher import Targets

_ROWS = 1024  # rows of logits at a time


@dataclass
class Score:
    """Sums over the drafts seen."""

    drafts: int = 0
    loss: float = 0.0
    agreement: float = 0.0  # drafts whose most likely token is the target's
    overlap: float = 0.0  # sum of min(p, q): how often sampling with shared noise can agree

    def add(self, other: "Score") -> None:
        """Adds `other` to this."""
        self.drafts += other.drafts
        self.loss += other.loss
        self.agreement += other.agreement
        self.overlap += other.overlap

    def means(self) -> dict[str, float]:
        """Per draft, rounded."""
        count = max(1, self.drafts)
        return {
            "loss": round(self.loss / count, 4),
            "agreement": round(self.agreement / count, 4),
            "overlap": round(self.overlap / count, 4),
        }


class Network(Protocol):
    """What makes drafts of outputs."""

    draft_to_target: Tensor  # [draft vocabulary], target ids

    def logits(self, rows: Tensor, /) -> Tensor:
        """Draft logits, float32 `[rows, draft vocabulary]`."""


class DraftLoss:
    """Compares draft logits with the target's distribution at the same positions.

    The target's probabilities outside the draft vocabulary are no reason to leave a position out: the KL is between
    the distributions within the vocabulary and weighs as much as the target's mass there.
    """

    def __init__(self, head: Tensor, ids: Tensor, cap: float | None = None) -> None:
        """`head` is the target's LM head `[V, H]`, `ids` `[draft vocabulary]` target ids, `cap` bends its logits."""
        self._head = head.index_select(0, ids)
        self._cap = cap

    def rows(self, logits: Tensor, targets: Targets, newest: Tensor, ids: Tensor) -> tuple[Tensor, Score]:
        """Loss summed over drafts, and scores. `logits` is `[drafts, draft vocabulary]`, `newest` `[drafts]`.

        `ids` maps draft ids to target ids.
        """
        with torch.no_grad():
            teacher = capped(linear(targets.normed[newest], self._head.to(targets.normed.dtype)).float(), self._cap)
            log_mass = teacher.logsumexp(-1) - targets.log_z[newest]
            mass = log_mass.clamp(max=0).exp()
            log_p = teacher.log_softmax(-1)
            p = log_p.exp()
        log_q = logits.log_softmax(-1)
        loss = (mass * (p * (log_p - log_q)).sum(-1)).sum()
        with torch.no_grad():
            agreed = ids[logits.argmax(-1)] == targets.best[newest]
            overlap = torch.minimum(p * mass[:, None], log_q.exp()).sum()
        return loss, Score(len(logits), loss.item(), agreed.sum().item(), overlap.item())

    def backward(self, module: Network, hidden: Tensor, targets: Targets, newest: Tensor) -> Score:
        """Adds the gradients of the mean loss to all parameters, and returns the scores.

        `hidden` are the outputs `[drafts, H]` that logits are made of.
        """
        total, gradient = self.gradient(module, hidden, targets, newest)
        torch.autograd.backward(hidden, gradient)
        return total

    def gradient(
        self, module: Network, hidden: Tensor, targets: Targets, newest: Tensor, weight: float = 1.0
    ) -> tuple[Score, Tensor]:
        """Scores, and the gradient of `weight` times the mean loss by `hidden`, a block of logits at a time.

        The gradients of what makes logits of `hidden` are added.
        """
        leaf = hidden.detach().requires_grad_()
        total = Score()
        for rows in torch.split(torch.arange(len(leaf), device=leaf.device), _ROWS):
            loss, score = self.rows(module.logits(leaf[rows]), targets, newest[rows], module.draft_to_target)
            torch.autograd.backward(weight * loss / len(leaf))
            total.add(score)
        assert leaf.grad is not None
        return total, leaf.grad

    @torch.no_grad()
    def score(self, module: Network, hidden: Tensor, targets: Targets, newest: Tensor) -> Score:
        """Scores without gradients."""
        total = Score()
        for rows in torch.split(torch.arange(len(hidden), device=hidden.device), _ROWS):
            _, score = self.rows(module.logits(hidden[rows]), targets, newest[rows], module.draft_to_target)
            total.add(score)
        return total

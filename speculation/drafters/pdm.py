"""The Pipeline Draft Module as a drafter: drafts from the hidden states of tokens that are still in the pipeline.

Taps arrive whenever they arrive; a draft waits for exactly those that its rows own (docs/design.md, "The draft
module"), so what is drafted does not depend on timing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculation.drafters.base import Draft, Drafter
from speculation.features import FeatureMap
from speculation.pdm.runtime import DraftRuntime
from workers.messages import Sampling, Tap
from workers.sampler import Sampler

CANDIDATES = 16  # ranks that are told apart in the hit rates
_ROWS_AHEAD = 64  # prompt rows in one go: rank 0 must not be away for long


@dataclass
class _Source:
    """One stage's taps: which columns of the anchor buffer they fill, and how far it is filled."""

    columns: list[int]
    filled: int = 0  # positions


class PdmDrafter(Drafter):
    """Holds the anchors of one sequence, `[capacity, anchors, H]`, and runs the module when they are complete."""

    def __init__(
        self, runtime: DraftRuntime, embedding: Tensor, draft_to_target: Tensor, vocab_size: int, capacity: int
    ) -> None:
        """`embedding` is the target's table `[V, H]`; `draft_to_target` maps draft ids to target ids `[V_d]`."""
        features = runtime.features
        self.anchors = features.anchors[1:]
        self._runtime = runtime
        self._features = features
        self._embedding = embedding
        self._draft_to_target = draft_to_target
        self._sampler = Sampler(vocab_size, embedding.device)
        self._logits = torch.full((vocab_size,), -torch.inf, device=embedding.device)
        self._buffer = torch.zeros(
            capacity, len(features.anchors), embedding.shape[1], dtype=embedding.dtype, device=embedding.device
        )
        self._sources = _sources(features)
        self._sampling = Sampling(seed=0)
        self._prompt_tokens = 0
        self._verified = 0
        self._embedded = 0  # positions whose column 0 is filled
        self._origins = [(0, 0)]  # epochs of this request, each with its first position

    def begin(self, prompt: Sequence[int], sampling: Sampling, epoch: int) -> None:
        """Embeds the prompt and forgets everything else."""
        self._runtime.reset()
        self._sampling = sampling
        self._prompt_tokens = len(prompt)
        self._verified = 0
        self._origins = [(epoch, 0)]
        self._embedded = 0
        self._embed(prompt, len(prompt))
        for source in self._sources.values():
            source.filled = 0

    def rejected(self, position: int, epoch: int) -> None:
        """Whatever was tapped from `position` on belongs to dead drafts."""
        self._origins.append((epoch, position))
        self._embedded = min(self._embedded, position)
        for source in self._sources.values():
            source.filled = min(source.filled, position)

    def tap(self, tap: Tap) -> None:
        """Stores hidden states unless they are of a dead frame."""
        if not self._is_alive(tap):
            return
        source = self._sources[tap.stage]
        shape = (-1, len(source.columns), self._buffer.shape[-1])
        states = torch.frombuffer(bytearray(tap.data), dtype=getattr(torch, tap.dtype)).view(shape)
        end = tap.position + len(states)
        self._buffer[tap.position : end, source.columns] = states.to(self._buffer)
        source.filled = end

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Notes how many tokens are final, and embeds the newest."""
        self._verified = count
        self._embed(tokens, count)

    def advance(self) -> bool:
        """Computes persistent rows of finished tokens: the prompt's, and those left behind while nobody asked."""
        start = self._runtime.cached
        end = start + _ROWS_AHEAD - start % _ROWS_AHEAD  # the same cuts whenever taps arrive
        if start < self._prompt_tokens:
            end = min(end, self._prompt_tokens)
        finished = max(self._prompt_tokens, self._verified - self._features.stages)
        if end > min(finished, self._filled(self._features.stages)):
            return False
        self._runtime.extend(self._buffer[start:end])
        return True

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """Candidates by the module's logits, shaped and ordered as the request samples; None until anchors are here."""
        if self._runtime.cached < self._prompt_tokens:
            return None
        newest = len(tokens) - 1
        plan = self._runtime.plan(self._origin(), newest)
        if any(self._filled(row.depth) <= row.position for row in plan.rows):
            return None
        self._embed(tokens, len(tokens))
        first = plan.rows[0].position
        logits = self._runtime.draft(plan, self._buffer[first : newest + 1])
        self._logits[self._draft_to_target] = logits
        scores = self._sampler.scores(
            self._logits, self._sampling, len(tokens), tokens[: self._prompt_tokens], tokens[self._prompt_tokens :]
        )
        best = tuple(scores.topk(min(CANDIDATES, len(logits))).indices.tolist())
        return Draft(best, float(torch.exp(self._logits[best[0]] - logits.logsumexp(0))))

    def _is_alive(self, tap: Tap) -> bool:
        """A frame is dead if a later epoch began at or before it; of frames of earlier requests, that is all."""
        if tap.epoch < self._origins[0][0]:
            return False
        for epoch, position in reversed(self._origins):  # taps are late by an epoch or two, seldom more
            if epoch <= tap.epoch:
                break
            if tap.position >= position:
                return False
        return True

    def _origin(self) -> int:
        """First position of the epoch, for the rows' depths: the prompt's own frames are finished."""
        return max(self._origins[-1][1], self._prompt_tokens)

    def _filled(self, depth: int) -> int:
        """Positions for which everything that a token of `depth` owns is here."""
        kind = self._features.kind(depth)
        owned = [source.filled for source in self._sources.values() if source.columns[0] <= kind]
        return min(owned, default=len(self._buffer))

    def _embed(self, tokens: Sequence[int], count: int) -> None:
        if self._embedded < count:
            ids = torch.tensor(tokens[self._embedded : count], device=self._embedding.device)
            self._buffer[self._embedded : count, 0] = self._embedding[ids]
            self._embedded = count


def _sources(features: FeatureMap) -> dict[int, _Source]:
    """The stages that own anchors, each with the columns it fills; the embedding is computed here."""
    columns = {
        stage: [features.anchors.index(anchor) for anchor in features.anchors_of_stage(stage) if anchor > 0]
        for stage in range(features.stages)
    }
    return {stage: _Source(owned) for stage, owned in columns.items() if owned}

"""Draft modules and exit heads as drafters: they draft from hidden states of tokens that are still in the pipeline.

Taps arrive whenever they arrive; a draft waits for exactly those that its rows own (docs/design.md, "The draft
module"), so what is drafted does not depend on timing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculation.decisions.features import FeatureMap
from speculation.drafters.base import PENDING, Answer, Drafter, Start, chunk_end
from speculation.drafters.candidates import draft_from
from speculation.pdm.module import DraftModule
from speculation.pdm.runtime import DraftRuntime
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.messages import Sampling, Tap

_ROWS_AHEAD = 64  # prompt rows in one go: rank 0 must not be away for long


@dataclass
class _Source:
    """One stage's taps: which columns of the anchor buffer they fill, and how far it is filled."""

    columns: list[int]
    filled: int = 0  # positions


class PdmDrafter(Drafter):
    """Collects anchors and runs the module when those of a draft are complete."""

    def __init__(self, runtime: DraftRuntime, embedding: Tensor, module: DraftModule, capacity: int) -> None:
        """`runtime` holds the module's persistent rows; `embedding` is the target's table `[V, H]`."""
        vocab_size, features = module.config.vocab_size, runtime.features
        self.anchors = features.read
        self._runtime = runtime
        self._embedding = embedding
        self._draft_to_target = module.draft_to_target
        self._sampler = Sampler(vocab_size, embedding.device)
        self._logits = torch.full((vocab_size,), -torch.inf, device=embedding.device)
        shape = (capacity, 1 + len(features.read), embedding.shape[1])
        self._buffer = torch.zeros(shape, dtype=embedding.dtype, device=embedding.device)  # anchors by position
        self._embedded = 0  # positions whose column 0 is filled
        self._sources = _sources(features)
        self._sampling = Sampling(seed=0)
        self._history = History(0, self._sampling)  # of the newest draft
        self._prompt_tokens = 0
        self._verified = 0
        self._origins = [(0, 0)]  # epochs of this request, each with its first position
        self._deaf = False

    def kept(self) -> int | None:
        """Positions whose anchors have all arrived."""
        return self._filled(self._runtime.features.last)

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Embeds the prompt and forgets everything but what is reused."""
        if (source := start.copies_from(PdmDrafter)) is not None:
            self._copy(source, start.reused)
        self._runtime.reset(start.reused)
        self._keep(start.reused)
        self._sampling = sampling
        self._history = History(len(prompt), sampling)
        self._prompt_tokens = len(prompt)
        self._verified = 0
        self._origins = [(start.epoch, 0)]
        self._deaf = False
        self._embed(prompt, len(prompt))

    def rejected(self, position: int, epoch: int) -> None:
        """Whatever was tapped from `position` on belongs to dead drafts."""
        self._origins.append((epoch, position))
        self._keep(position)
        self._runtime.rejected(position)

    def tap(self, tap: Tap) -> None:
        """Stores hidden states but those of dead drafts, and those that come behind others that were not sent."""
        stands = self._stands(tap)
        if self._deaf or tap.position >= stands:
            return
        buffer, source = self._buffer, self._sources[tap.stage]
        if tap.position > source.filled:
            return  # what came before it has been missed, so the rest is of no use either
        shape = (-1, len(source.columns), buffer.shape[-1])
        states = torch.frombuffer(bytearray(tap.data), dtype=getattr(torch, tap.dtype)).view(shape)
        end = min(tap.position + len(states), stands)
        buffer[tap.position : end, source.columns] = states[: end - tap.position].to(buffer)
        source.filled = end

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Notes how many tokens are final, and embeds the newest."""
        self._verified = count
        if not self._deaf:
            self._embed(tokens, count)

    def deafen(self) -> None:
        """Nothing is kept from here on."""
        self._deaf = True

    def frames(self, width: int) -> None:
        """Rows of drafts to come are those of frames of so many tokens."""
        self._runtime.width = width

    def advance(self) -> bool:
        """Computes persistent rows of finished tokens: the prompt's, and those left behind while nobody asked."""
        start = self._runtime.cached
        end = chunk_end(start, self._prompt_tokens, _ROWS_AHEAD)
        finished = max(self._prompt_tokens, self._verified - self._runtime.lag)
        if end > min(finished, self._filled(self._runtime.features.last)):
            return False
        self._runtime.extend(self._buffer[start:end])
        return True

    def draft(self, tokens: Sequence[int]) -> Answer:
        """Candidates by the module's logits, shaped and ordered as the request samples, once the anchors are here."""
        if self._runtime.cached < self._prompt_tokens:
            return PENDING
        newest = len(tokens) - 1
        plan = self._runtime.plan(self._origin(), newest)
        if any(self._filled(row.depth) <= row.position for row in plan.rows):
            return PENDING
        self._embed(tokens, len(tokens))
        first = plan.rows[0].position
        logits = self._runtime.draft(plan, self._buffer[first : newest + 1])
        self._logits[self._draft_to_target] = logits
        self._history.follow(tokens, self._verified)
        return draft_from(self._logits, self._sampler, self._sampling, len(tokens), self._history)

    def _copy(self, source: "PdmDrafter", positions: int) -> None:
        """Takes over what the drafter of another slot has of its first `positions`."""
        self._buffer[:positions] = source._buffer[:positions]
        self._runtime.copy(source._runtime, positions)
        self._embedded = source._embedded
        for stage, filled in source._sources.items():
            self._sources[stage].filled = filled.filled

    def _stands(self, tap: Tap) -> int:
        """Position from which a frame is dead: where a later epoch began, and 0 for what is of earlier requests."""
        stands = len(self._buffer)
        for epoch, position in reversed(self._origins):  # taps are late by an epoch or two, seldom more
            if epoch <= tap.epoch:
                return stands
            stands = min(stands, position)
        return 0

    def _origin(self) -> int:
        """First position of the epoch, for the rows' depths: the prompt's own frames are finished."""
        return max(self._origins[-1][1], self._prompt_tokens)

    def _embed(self, tokens: Sequence[int], count: int) -> None:
        if self._embedded < count:
            ids = torch.tensor(tokens[self._embedded : count], device=self._embedding.device)
            self._buffer[self._embedded : count, 0] = self._embedding[ids]
            self._embedded = count

    def _keep(self, positions: int) -> None:
        """Whatever is at `positions` and behind is to be written anew."""
        self._embedded = min(self._embedded, positions)
        for source in self._sources.values():
            source.filled = min(source.filled, positions)

    def _filled(self, depth: int) -> int:
        """Positions for which everything that a token of `depth` owns is here."""
        kind = self._runtime.features.kind(depth)
        owned = [source.filled for source in self._sources.values() if source.columns[0] <= kind]
        return min(owned, default=len(self._buffer))


def _sources(features: FeatureMap) -> dict[int, _Source]:
    """The stages that own anchors, each with the columns it fills; the embedding is computed here."""
    columns = {
        stage: [
            features.anchors.index(anchor) for anchor in features.anchors_of_stage(stage) if anchor in features.read
        ]
        for stage in range(features.stages)
    }
    return {stage: _Source(owned) for stage, owned in columns.items() if owned}

"""Drafting for one sequence: prompt rows chunk by chunk, then a few rows for each draft."""

from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.decisions.drafts.tree import Node
from speculation.decisions.features import DraftPlan, FeatureMap, Row, plan_draft
from speculation.pdm.module import DraftModule
from workers.model.attention import FrameContext, TreeContext
from workers.shared.errors import ConfigError
from workers.shared.frames import REAL, Branches


class DraftRuntime:
    """Holds the persistent rows of one sequence and computes drafts from the anchors that the caller brings.

    Several of them share one module in any order; each allocates what it needs when it is made, and nothing later.
    A new request starts with `reset`, a rejection is a later `plan` with a newer origin: nothing is undone.
    """

    def __init__(
        self, module: DraftModule, split: tuple[int, ...], capacity: int, width: int = 1, scratch: int = 0
    ) -> None:
        """`capacity` is the largest number of tokens in a sequence, the drafted one included; `width` a frame's.

        For `draft_level` there have to be as many rows of `scratch` as the stages have.
        Raises `ConfigError` where `split` does not fit the module's target, or stage 0 ends before an exit head's exit.
        """
        if sum(split) != module.config.target_layers:
            raise ConfigError(
                f"split {list(split)}: the draft module's target has {module.config.target_layers} layers"
            )
        self.features = FeatureMap(module.config.anchors, split, module.config.rows)
        self.features.check_read()
        self.cached = 0
        self._origin: int | None = None
        self.width = width  # of the frames to come
        self._held: tuple[Row, ...] = ()  # the rows of the last draft, still in the cache
        self._module = module
        self._kinds = self.features.kinds()
        self._cache = module.new_cache(capacity, scratch)
        self._rotary = module.rotary_tables(capacity)

    @property
    def lag(self) -> int:
        """Tokens, the newest verified ones, whose rows may not be final, or have to be computed for a draft."""
        return (self.features.last + 1) * self.width - 1

    def reset(self, kept: int = 0) -> None:
        """Forgets the sequence but for its first `kept` tokens, as far as they are finished and cached."""
        self.cached = min(self.cached, kept)
        self._origin = None
        self._held = ()

    def rejected(self, position: int) -> None:
        """The token at `position` was wrong: rows from there on are dead, those that had become final, too."""
        self.cached = min(self.cached, position)
        self._held = ()

    def copy(self, other: "DraftRuntime", positions: int) -> None:
        """Holds what `other` has cached of its first `positions` tokens; a `reset` follows."""
        self.cached = min(other.cached, positions)
        self._cache.copy(0, 0, self.cached, other._cache)

    @torch.inference_mode()
    def extend(self, anchors: Tensor) -> None:
        """Adds finished tokens, such as a prompt chunk, after the cached ones. `anchors` is `[tokens, anchors, H]`."""
        rows = self._module.features(self.features.final_kind, anchors)
        self._held = ()
        self._run(self.cached, rows)
        self.cached += len(rows)

    def plan(self, origin: int, newest: int) -> DraftPlan:
        """The rows whose anchors `draft` needs for the token after position `newest`; see `plan_draft`.

        A row of depth d needs the anchors up to type `features.kind(d)` of its token, and no others.
        """
        if origin != self._origin:
            # With more credits than stages, rows of a dead epoch may have become final before it died.
            self.cached = min(self.cached, origin)
            self._origin = origin
            self._held = ()
        features = self.features
        self.cached = min(self.cached, newest)  # an exit head's newest row may be final, and its output is needed
        self.cached = min(self.cached, max(origin, newest - features.last + 1))  # where no draft of a level was right
        return plan_draft(features.last, origin, newest, self.cached, self.width, features.first)

    @torch.inference_mode()
    def draft(self, plan: DraftPlan, anchors: Tensor) -> Tensor:
        """Draft logits, float32 `[draft vocabulary]`, for the token after the plan's newest.

        `anchors` is `[rows of the plan, anchors, H]`; what a row does not own is never read. Drafts of one frame have
        all rows in common but the newest, so only the first of them computes more than that.
        """
        held = set(self._held)
        known = next((place for place, row in enumerate(plan.rows[:-1]) if row not in held), len(plan.rows) - 1)
        fresh = plan.rows[known:]
        kinds: Sequence[int] = [self._kinds[row.depth] for row in fresh]
        rows = self._run(fresh[0].position, self._module.mixed_features(kinds, anchors[known:]))
        self._held = plan.rows
        self.cached = plan.rows[0].position + plan.persistent
        return self._module.logits(rows[-1:])[0]

    @torch.inference_mode()
    def draft_level(
        self, plan: DraftPlan, verified: int, nodes: Sequence[Node], leaves: Sequence[Node], anchors: Tensor
    ) -> Tensor:
        """Draft logits, float32 `[leaves, draft vocabulary]`, behind leaves at the plan's newest position, in one pass.

        `nodes` are the drafts on the way to them, in order of position; the plan's depths are those of all drafts at a
        position. `anchors` is `[rows of the plan before `verified`, then nodes; anchors; H]`.
        """
        first = plan.rows[0].position
        before = [row for row in plan.rows if row.position < verified]
        depths = {row.position: row.depth for row in plan.rows}
        kinds = [self._kinds[row.depth] for row in before] + [self._kinds[depths[node.position]] for node in nodes]
        text = (REAL,) * len(before)
        paths = [text[: place + 1] for place in range(len(before))]
        paths += [(*text, *(node.slot for node in last.path(verified))) for last in nodes]
        seen = TreeContext(
            self._cache.layers(0), Branches(first, tuple(paths)), self._module.device, self._cache.scratch
        )
        rotations = self._rotary.rows(seen.positions[0])
        rows = self._module.tower(self._module.mixed_features(kinds, anchors), rotations, seen)
        self._held = ()
        self.cached = min(first + plan.persistent, verified)
        places = {node: len(before) + place for place, node in enumerate(nodes)}
        return self._module.logits(rows[[places.get(leaf, len(before) - 1) for leaf in leaves]])

    def _run(self, start: int, rows: Tensor) -> Tensor:
        frame = FrameContext(
            self._cache.layers(0),
            start,
            len(rows),
            scratch=self._cache.scratch,
            chunk_masks=self._cache.chunk_masks,
        )
        if frame.end > self._cache.max_len:
            raise ValueError(f"draft module: position {frame.end - 1} is beyond its capacity of {self._cache.max_len}")
        return self._module.tower(rows, self._rotary.at(start, frame.end), frame)

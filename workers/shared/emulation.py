"""Times that are made up, to rehearse devices and links that are not at hand."""

from collections.abc import Sequence
from math import log2
from typing import Annotated

import msgspec

from workers.shared.options.declared import Milliseconds, about

Cost = Annotated[float, msgspec.Meta(ge=1)]

REHEARSAL = "Rehearsing and measuring"


def cost_of_rows(known: Sequence[float], rows: int) -> float:
    """Cost of a frame of so many tokens, in frames of one, where it is `known` for 1, 2, 4, 8, ... tokens.

    In between it lies on a line, and beyond the last it stays; where nothing is known, all frames cost the same.
    """
    if not known:
        return 1.0
    below = min(int(log2(rows)), len(known) - 1)
    above = min(below + 1, len(known) - 1)
    return known[below] + (known[above] - known[below]) * (rows / 2**below - 1 if above > below else 0)


class Emulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds, passed asleep; 0 takes as long as it takes."""

    stage_ms: Annotated[Milliseconds, about(REHEARSAL, "Make every stage take at least this long a frame, asleep")] = (
        0.0
    )
    head_ms: Annotated[Milliseconds, about(REHEARSAL, "Make the last stage take this much longer")] = 0.0
    draft_ms: Annotated[Milliseconds, about(REHEARSAL, "Make a draft take at least this long")] = 0.0
    cascade_ms: Annotated[
        tuple[Milliseconds, ...],
        about(REHEARSAL, "Make a pass of each model of --cascade take at least this long, asleep; one each, or one"),
    ] = ()
    row_cost: Annotated[
        tuple[Cost, ...],
        about(
            REHEARSAL,
            "Make emulated stages take so many times as long for frames of 1, 2, 4, 8, ... tokens, such as "
            "1,1.03,1.07,1.1",
        ),
    ] = ()
    # Several hidden states may be on their way at once.
    link_ms: Annotated[Milliseconds, about(REHEARSAL, "Let hidden states arrive this much later at the next stage")] = (
        0.0
    )

    def __bool__(self) -> bool:
        """Whether anything is emulated."""
        return self != Emulation()

    def __str__(self) -> str:
        """What is emulated, such as "stage 5 ms, link 0.5 ms"."""
        times = {"stage": self.stage_ms, "head": self.head_ms, "draft": self.draft_ms, "link": self.link_ms}
        what = [f"{name} {ms:g} ms" for name, ms in times.items() if ms]
        if self.cascade_ms:
            what.append(f"cascade {', '.join(f'{ms:g}' for ms in self.cascade_ms)} ms")
        if self.row_cost:
            what.append(f"rows {', '.join(f'{cost:g}' for cost in self.row_cost)}")
        return ", ".join(what) or "nothing"

    def of_stage(self, *, last: bool) -> float:
        """Least time of a stage for a frame, milliseconds."""
        return self.stage_ms + (self.head_ms if last else 0.0)

    def of_cascade(self, model: int) -> float:
        """Least time of a pass of this model of the cascade, milliseconds; 0 takes as long as it takes."""
        return self.cascade_ms[model % len(self.cascade_ms)] if self.cascade_ms else 0.0

    def of_rows(self, rows: int) -> float:
        """Cost of a frame of so many tokens, in frames of one."""
        return cost_of_rows(self.row_cost, rows)

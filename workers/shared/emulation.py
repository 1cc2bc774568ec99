"""Times that are made up, to rehearse devices and links that are not at hand."""

from typing import Annotated

import msgspec

from workers.shared.options.declared import Milliseconds, about

REHEARSAL = "Rehearsing and measuring"


class Emulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds, passed asleep; 0 takes as long as it takes."""

    stage_ms: Annotated[Milliseconds, about(REHEARSAL, "Make every stage take at least this long a frame, asleep")] = (
        0.0
    )
    head_ms: Annotated[Milliseconds, about(REHEARSAL, "Make the last stage take this much longer")] = 0.0
    draft_ms: Annotated[Milliseconds, about(REHEARSAL, "Make a draft take at least this long")] = 0.0
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
        return ", ".join(f"{name} {ms:g} ms" for name, ms in times.items() if ms) or "nothing"

    def of_stage(self, *, last: bool) -> float:
        """Least time of a stage for a frame, milliseconds."""
        return self.stage_ms + (self.head_ms if last else 0.0)

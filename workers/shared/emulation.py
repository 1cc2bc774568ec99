"""Times that are made up, to rehearse devices and links that are not at hand."""

import msgspec

from workers.shared.errors import ConfigError


class Emulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds, passed asleep; 0 takes as long as it takes."""

    stage_ms: float = 0.0  # least time of a stage for a frame
    head_ms: float = 0.0  # what the last stage takes beyond that
    draft_ms: float = 0.0  # least time of a draft
    link_ms: float = 0.0  # way of a hidden state from stage to stage; several may be on their way at once

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

    def check(self) -> None:
        """Raises `ConfigError` naming the flag whose time is negative."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ConfigError(f"--emulate-{name.replace('_', '-')} must be 0 or more milliseconds")

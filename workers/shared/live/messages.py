"""The messages of a live trace: from the API server to rank 0 to the stages, and all the way back."""

from msgspec import Struct

from workers.shared.frames import Natural
from workers.shared.live.events import TraceEvent


class Report(Struct, frozen=True, array_like=True, tag="report"):
    """From now on, stages send a `Passage` for every frame, or no longer."""

    wanted: bool


class Passage(Struct, frozen=True, array_like=True, tag="passage"):
    """The stage has passed a frame on; only while reports are wanted. Nanoseconds of the stage's own clock."""

    stage: Natural
    index: Natural  # of the frame
    done: int  # when
    worked: int  # how long
    computed: bool  # False: it was dead


class Watch(Struct, frozen=True, tag="watch"):
    """Somebody looks: trace events are wanted for some seconds from now (`speculation.decisions.trace`)."""

    snapshot: bool = False  # and first, which requests run


class Trace(Struct, frozen=True, tag="trace"):
    """Events in the order in which rank 0 heard of them."""

    events: list[TraceEvent]
    lost: int = 0  # events before these for which there was no room

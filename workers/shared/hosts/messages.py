"""How hosts join an engine: messages between `echelon join` on each of them and the lobby of `echelon serve`.

An attempt at an engine is a round. What is said about an earlier round means nothing any more.
"""

import msgspec

from workers.shared.config import EngineConfig
from workers.shared.frames import Natural

PATIENCE = 15.0  # seconds of silence after which either side counts as gone


class Seat(msgspec.Struct, frozen=True):
    """Room for one stage."""

    device: str
    memory_bytes: int  # free when the host joined
    bytes_per_second: float  # of weights read in products of a matrix and a vector; 0: not measured


class LinkReport(msgspec.Struct, frozen=True):
    """What came of proving one link."""

    link: str  # both ends, as `stage 0 to stage 1`
    address: str
    problem: str = ""  # why nothing gets through; empty where something does
    round_trip: float = 0.0  # seconds, the least of some
    bytes_per_second: float = 0.0


class ModelFile(msgspec.Struct, frozen=True):
    """A file of a model folder."""

    name: str
    size: Natural  # bytes


# --- from a host that joins ---


class Join(msgspec.Struct, frozen=True, tag="join"):
    """The first message of a host."""

    name: str  # for people
    address: str  # under which other hosts reach it
    seats: tuple[Seat, ...]
    version: str  # of Echelon
    stage: Natural | None = None  # which stage its first seat must be, the others the next ones; None: whichever


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Once a second."""


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The model is there, and the host listens where its stages will."""

    round: Natural
    fingerprint: dict[str, str]  # see workers.shared.fingerprint


class Proved(msgspec.Struct, frozen=True, tag="proved"):
    """The answer to `Prove`."""

    round: Natural
    links: tuple[LinkReport, ...]


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """A piece of a file that `Prepare` offers."""

    round: Natural
    name: str
    offset: Natural


class HostEnded(msgspec.Struct, frozen=True, tag="ended"):
    """This host cannot take part in the round, or not any longer."""

    round: Natural
    reason: str
    permanent: bool = False  # it would be the same next time


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """The last message of a host that was told to stop."""


FromHost = Join | Alive | Prepared | Proved | Fetch | HostEnded | Leave


# --- from the lobby ---


class Heard(msgspec.Struct, frozen=True, tag="heard"):
    """The answer to `Join` and `Alive`."""

    known: bool = True  # False: this lobby has not heard the host's `Join`, or counts it as gone


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Have the model ready, and listen where `stages` will."""

    round: Natural
    model: str  # as it was given to rank 0
    revision: str | None  # of a model on the hub
    config: EngineConfig  # with rank 0's own model folder
    stages: tuple[Natural, ...]
    files: tuple[ModelFile, ...] = ()  # of a model that cannot be fetched by its name
    digest: str = ""  # under which a host keeps them


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """The answer to `Fetch`."""

    round: Natural
    name: str
    offset: Natural
    data: bytes  # none where rank 0 has no such piece


class Prove(msgspec.Struct, frozen=True, tag="prove"):
    """Everybody listens: prove the links that begin here."""

    round: Natural


class StartStages(msgspec.Struct, frozen=True, tag="start"):
    """All links are proved: start the stages."""

    round: Natural


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End whatever earlier rounds have left."""


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """This host cannot be used, and need not ask again."""

    reason: str


ToHost = Heard | Prepare | Piece | Prove | StartStages | Stop | Refuse

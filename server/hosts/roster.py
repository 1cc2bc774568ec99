"""Which hosts are there, and which of their seats holds which stage. Pure: no sockets, no clocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from workers.shared.hosts.messages import Join, Seat


@dataclass
class Member:
    """A host that has joined."""

    join: Join
    heard: float  # monotonic seconds


@dataclass(frozen=True)
class SeatedStage:
    """Where one stage runs."""

    member: bytes
    address: str
    seat: Seat


Seating = tuple[SeatedStage, ...]  # one a stage


@dataclass
class Roster:
    """Hosts by their connection, in the order in which they joined; silent for `patience` seconds, they are gone."""

    patience: float
    members: dict[bytes, Member] = field(default_factory=dict)

    def joined(self, member: bytes, join: Join, now: float) -> None:
        """A host says what it offers; the same host may say so again."""
        self.members[member] = Member(join, now)

    def heard(self, member: bytes, now: float) -> bool:
        """A host has said something; False where it has not joined, or counts as gone."""
        if (known := self.members.get(member)) is None:
            return False
        known.heard = now
        return True

    def left(self, member: bytes) -> Member | None:
        """A host leaves, or is sent away; what it was, if it was one."""
        return self.members.pop(member, None)

    def silent(self, now: float) -> list[bytes]:
        """Those of which nothing has been heard for too long."""
        return [name for name, member in self.members.items() if now - member.heard > self.patience]

    def seats(self) -> int:
        """Seats there are."""
        return sum(len(member.join.seats) for member in self.members.values())

    def seating(self, stages: int) -> Seating | None:
        """A seat for every stage, or None while they do not suffice.

        Hosts that ask for a stage have it and those that follow, the first host that asks; the other stages go to the
        remaining seats in order, so that those of one host are neighbours. Seats beyond what is needed are in reserve.
        """
        asked: dict[int, SeatedStage] = {}
        free: list[SeatedStage] = []
        for member, number, place in self._places():
            if member.join.stage is None:
                free.append(place)
            elif (wanted := member.join.stage + number) < stages:
                asked.setdefault(wanted, place)
        rest = iter(free)
        seated = [asked.get(stage) or next(rest, None) for stage in range(stages)]
        return None if None in seated else tuple(place for place in seated if place is not None)

    def _places(self) -> Iterator[tuple[Member, int, SeatedStage]]:
        for name, member in self.members.items():
            for number, seat in enumerate(member.join.seats):
                yield member, number, SeatedStage(name, member.join.address, seat)


def stages_of(seating: Seating, member: bytes) -> tuple[int, ...]:
    """The stages that a host holds."""
    return tuple(stage for stage, place in enumerate(seating) if place.member == member)


def relative_speeds(seats: Sequence[Seat], alike: float = 1.25) -> tuple[int, ...] | None:
    """Speeds of seats in thousandths of the fastest; None where one was not measured, or all are about `alike`."""
    speeds = [seat.bytes_per_second for seat in seats]
    if not speeds or min(speeds) <= 0 or max(speeds) <= alike * min(speeds):
        return None
    return tuple(max(1, round(1000 * speed / max(speeds))) for speed in speeds)

"""The lobby: where hosts join, are seated, prepare the model and prove their links before an engine starts.

A thread talks to the hosts, so that they are heard whatever the launcher waits for; the launcher asks for an engine.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import zmq

from server.hosts.model_files import ModelFiles, SharedModel
from server.hosts.roster import Roster, Seating, stages_of
from workers.decisions.reminder import Reminder
from workers.shared.bus import Intake, encode, open_socket
from workers.shared.config import EngineConfig
from workers.shared.endpoints import TCP
from workers.shared.errors import AddressInUse, ConfigError
from workers.shared.fingerprint import disagreement, package_version
from workers.shared.hosts.group_key import GroupContext
from workers.shared.hosts.link_proof import Listening
from workers.shared.hosts.messages import (
    PATIENCE,
    Alive,
    Fetch,
    FromHost,
    Heard,
    HostEnded,
    Join,
    Leave,
    LinkReport,
    Prepare,
    Prepared,
    Prove,
    Proved,
    Refuse,
    StartStages,
    Stop,
    ToHost,
)
from workers.shared.processes.logs import tell

_LOOK_MS = 50
_MOMENT = 0.3  # seconds in which those that have gone are noticed
_WAIT = 0.1  # seconds between two looks of the launcher
_FIRST_WORD = 5.0  # seconds after which waiting is explained, then after twice as long each time
_AGAIN = 3.0  # seconds
_MOST_MEMBERS = 1024


class Lobby:
    """Listens at `address` for hosts that hold `token`."""

    def __init__(
        self, address: str, listen: str | None, token: str, model: SharedModel, *, again: float = _AGAIN
    ) -> None:
        """Raises `ConfigError` where `address` cannot be bound; `listen` replaces its host for that.

        What failed is tried again after `again` seconds.
        """
        self._again = again
        self._model = model
        self._files = ModelFiles(model.folder if model.by_files else None)
        self._context = GroupContext(token)
        try:
            self._socket = open_socket(self._context, zmq.ROUTER, address, bind=True, listen=listen, token=token)
        except zmq.ZMQError as error:
            raise ConfigError(f"--gather-at {address}: {error.strerror}") from error
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # what cannot be delivered is an error
        self._lock = threading.RLock()
        self._roster = Roster(PATIENCE)
        self._round = 0
        self._prepared: dict[bytes, Mapping[str, str]] = {}
        self._proved: dict[bytes, tuple[LinkReport, ...]] = {}
        self._trouble: list[str] = []  # what has gone wrong in this round
        self._seating: Seating = ()
        self._outbox: queue.SimpleQueue[tuple[bytes, ToHost]] = queue.SimpleQueue()
        self._from_hosts: Intake[FromHost] = Intake(FromHost, "lobby")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="lobby", daemon=True)
        self._thread.start()

    # --- what the launcher asks for --------------------------------------------------------------------------------

    def assemble(
        self,
        stages: int,
        plan: Callable[[Seating], EngineConfig],
        fingerprint: Callable[[EngineConfig], Mapping[str, str]],
    ) -> EngineConfig:
        """Returns the configuration of an engine whose hosts have the model and reach each other.

        Waits for as long as that takes, and says what for. Raises what `plan` raises.
        """
        while True:
            self._tell_all(Stop())
            time.sleep(_MOMENT)
            seating = self._await_seating(stages)
            config = plan(seating)
            self._begin(config, seating)
            problem = self._await_prepared(seating, fingerprint(config)) or self._await_links(config, seating)
            if problem is None:
                return config
            tell(f"echelon: {problem}; trying again")
            time.sleep(self._again)

    def start(self) -> None:
        """The hosts of the last engine that was assembled start its stages."""
        self._tell_seated(StartStages(self._round))

    def close(self) -> None:
        """Tells all hosts to stop their stages, and leaves."""
        self._tell_all(Stop())
        self._closing.set()
        self._thread.join()
        self._socket.close(linger=1000)
        self._context.term()

    # --- a round ---------------------------------------------------------------------------------------------------

    def _begin(self, config: EngineConfig, seating: Seating) -> None:
        with self._lock:
            self._round += 1
            self._seating = seating
            self._prepared, self._proved, self._trouble = {}, {}, []
        for member in dict.fromkeys(place.member for place in seating):
            stages = stages_of(seating, member)
            work = Prepare(
                self._round, self._model.name, self._model.revision, config, stages, self._files.offered,
                self._model.digest,
            )  # fmt: skip
            self._outbox.put((member, work))

    def _await_seating(self, stages: int) -> Seating:
        reminder = Reminder(_FIRST_WORD, time.monotonic())
        while True:
            with self._lock:
                seating, seats = self._roster.seating(stages), self._roster.seats()
            if seating is not None:
                return seating
            if reminder.due(time.monotonic()):
                tell(f"echelon: waiting for hosts to join: {seats} of {stages} stages have a seat")
            time.sleep(_WAIT)

    def _await_prepared(self, seating: Seating, mine: Mapping[str, str]) -> str | None:
        """None once all hosts have the same model and listen; else what is wrong. Who does not belong is sent away."""
        if (problem := self._await(seating, self._prepared, "to prepare the model")) is not None:
            return problem
        for member, theirs in self._prepared.items():
            if (difference := disagreement("rank 0", mine, "that host", theirs)) is not None:
                self._refuse(member, f"this host does not belong to the engine: {difference}")
                return f"a host does not belong to this engine: {difference}"
        return None

    def _await_links(self, config: EngineConfig, seating: Seating) -> str | None:
        """None once something gets through every link; else the links through which nothing does, and why."""
        try:
            listening = Listening(config.endpoints, [config.endpoints.results, *config.endpoints.control])
        except AddressInUse as error:
            return str(error)
        try:
            self._tell_seated(Prove(self._round))
            if (problem := self._await(seating, self._proved, "to prove its links")) is not None:
                return problem
        finally:
            listening.close()
        reports = [report for reports in self._proved.values() for report in reports]
        for report in reports:
            tell(f"echelon: {_described(report)}")
        broken = [report.link for report in reports if report.problem]
        return f"nothing gets through {', '.join(broken)}" if broken else None

    def _await(self, seating: Seating, answers: Mapping[bytes, object], what: str) -> str | None:
        """None once every host has answered; else why that will not be."""
        reminder = Reminder(_FIRST_WORD, time.monotonic())
        hosts = {place.member: place.address for place in seating}
        while True:
            with self._lock:
                missing = [address for member, address in hosts.items() if member not in answers]
                trouble = "; ".join(self._trouble)
            if trouble or not missing:
                return trouble or None
            if reminder.due(time.monotonic()):
                tell(f"echelon: waiting for {', '.join(missing)} {what}")
            time.sleep(_WAIT)

    def _refuse(self, member: bytes, reason: str) -> None:
        with self._lock:
            self._roster.left(member)
        self._outbox.put((member, Refuse(reason)))

    def _tell_seated(self, message: ToHost) -> None:
        for member in dict.fromkeys(place.member for place in self._seating):
            self._outbox.put((member, message))

    def _tell_all(self, message: ToHost) -> None:
        with self._lock:
            members = list(self._roster.members)
        for member in members:
            self._outbox.put((member, message))

    # --- the thread ------------------------------------------------------------------------------------------------

    def _attend(self) -> None:
        while not (self._closing.is_set() and self._outbox.empty()):
            if self._socket.poll(_LOOK_MS):
                self._receive()
            with suppress(queue.Empty):
                while True:
                    self._send(*self._outbox.get_nowait())
            self._look_at_silence()

    def _send(self, member: bytes, message: ToHost) -> None:
        try:
            self._socket.send_multipart((member, encode(message)))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            with self._lock:
                self._lose(member, "has gone")

    def _receive(self) -> None:
        while self._socket.poll(0):
            member, *parts = self._socket.recv_multipart()
            message = self._from_hosts.read(parts[0]) if len(parts) == 1 else None
            if message is not None:
                with self._lock:
                    self._hear(member, message, time.monotonic())

    def _hear(self, member: bytes, message: FromHost, now: float) -> None:
        if isinstance(message, Join):
            self._admit(member, message, now)
        elif not self._roster.heard(member, now):
            self._send(member, Heard(known=False))
        elif isinstance(message, Alive):
            self._send(member, Heard())
        elif isinstance(message, Leave):
            self._lose(member, "has left")
        elif message.round != self._round:
            return
        elif isinstance(message, Fetch):
            self._send(member, self._files.piece(message))
        elif isinstance(message, Prepared):
            self._prepared[member] = message.fingerprint
        elif isinstance(message, Proved):
            self._proved[member] = message.links
        elif isinstance(message, HostEnded):
            self._note(member, f"{self._roster.members[member].join.name}: {message.reason}")
            if message.permanent:
                self._roster.left(member)
                self._send(member, Refuse(message.reason))

    def _admit(self, member: bytes, join: Join, now: float) -> None:
        if join.version != package_version():
            reason = f"rank 0 runs Echelon {package_version()}, this host {join.version}; install the same"
            self._send(member, Refuse(reason))
        elif not join.seats or len(self._roster.members) >= _MOST_MEMBERS:
            self._send(member, Refuse("there is nothing for this host to do"))
        else:
            if member not in self._roster.members:
                tell(f"echelon: {join.name} has joined, with {', '.join(seat.device for seat in join.seats)}")
            self._roster.joined(member, join, now)
            self._send(member, Heard())

    def _lose(self, member: bytes, how: str) -> None:
        if (gone := self._roster.left(member)) is not None:
            self._note(member, f"{gone.join.name} {how}")
            tell(f"echelon: {gone.join.name} {how}")

    def _look_at_silence(self) -> None:
        with self._lock:
            for member in self._roster.silent(time.monotonic()):
                self._lose(member, f"has said nothing for {PATIENCE:g} s and counts as gone")

    def _note(self, member: bytes, trouble: str) -> None:
        if stages_of(self._seating, member):  # what befalls a host in reserve is no trouble
            self._trouble.append(trouble)


def _described(report: LinkReport) -> str:
    if report.problem:
        return f"link {report.link} at {report.address.removeprefix(TCP)}: {report.problem}"
    speed = f"{report.round_trip * 1e3:.2f} ms there and back, {report.bytes_per_second / 1e6:.0f} MB/s"
    return f"link {report.link} at {report.address.removeprefix(TCP)}: {speed}"

"""A host in the lobby of rank 0: joins, has the model made ready, proves links, runs stages, and joins again.

One thread, one loop: messages of the lobby, the processes of this host, and the time.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

from workers.hosts.download import Download
from workers.prepare.prepared_folders import cache_folder
from workers.shared.bus import Intake, encode, open_socket
from workers.shared.config import EngineConfig, save_config
from workers.shared.errors import AddressInUse, ConfigError
from workers.shared.fingerprint import engine_fingerprint
from workers.shared.hosts.link_proof import Listening, links_of, listening_addresses, prove
from workers.shared.hosts.messages import (
    PATIENCE,
    Alive,
    Fetch,
    FromHost,
    Heard,
    HostEnded,
    Join,
    Leave,
    Piece,
    Prepare,
    Prepared,
    Prove,
    Proved,
    Refuse,
    StartStages,
    Stop,
    ToHost,
)
from workers.shared.lifecycle import parent_variable
from workers.shared.processes.children import Group, Spawn, spawn
from workers.shared.processes.forked import STAGES, ForkServer, may_fork
from workers.shared.processes.logs import tell

_ALIVE_SECONDS = 1.0
_LOOK_MS = 200
_FIRST_WORD = 5.0  # seconds without an answer after which one is told, then after twice as long each time
_GRACE = 3.0  # seconds for stages to leave in
_TOLD = 2  # exit code of a program that has said in one line what is wrong


class Agent:
    """Joins at `address` and does what the lobby there says until told to stop."""

    def __init__(self, address: str, token: str, join: Join, local_model: str | None = None) -> None:
        """`join` is what this host offers; `local_model` replaces the engine's model where that is a path."""
        self._address = address
        self._token = token
        self._join = join
        self._local_model = local_model
        self._context: zmq.Context[Any] = zmq.Context()
        self._from_lobby: Intake[ToHost] = Intake(ToHost, "lobby")
        self._socket = self._connect()
        self._folder = Path(tempfile.mkdtemp(prefix="echelon-"))
        self._heard = time.monotonic()  # when the lobby last said something
        self._known = False  # whether it has answered on this connection
        self._word = _FIRST_WORD
        self._next_alive = 0.0
        self._work: Prepare | None = None  # of the present round
        self._preparing: subprocess.Popen[str] | None = None
        self._config: EngineConfig | None = None  # with this host's model folder
        self._download: Download | None = None
        self._listening: Listening | None = None
        self._stages = Group()
        self._to_start: Sequence[int] = ()  # stages, as soon as nothing is being imported any more
        self._fork_server = ForkServer(*STAGES)
        self._refused: str | None = None

    def run(self) -> int:
        """Returns an exit code once refused; whatever a signal handler raises gets through."""
        if may_fork(seat.device for seat in self._join.seats):
            self._fork_server.prepare()  # long before it is told to start anything
        try:
            while self._refused is None:
                self._turn()
            tell(f"{self._join.name}: {self._refused}", error=True)
            return 2
        finally:
            self._end_round()
            self._fork_server.close()
            self._socket.send(encode(Leave()))
            self._socket.close(linger=int(1000 * _GRACE))
            self._context.term()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _turn(self) -> None:
        now = time.monotonic()
        if now >= self._next_alive:
            self._next_alive = now + _ALIVE_SECONDS
            self._send(Alive() if self._known else self._join)
        if self._socket.poll(_LOOK_MS):
            while (message := self._receive()) is not None:
                self._heard, self._word = time.monotonic(), _FIRST_WORD
                if not self._known:
                    tell(f"{self._join.name}: joined {self._address} with {_described(self._join)}")
                self._known = True
                self._obey(message)
        self._look_at_silence()
        self._look_at_processes()

    # --- the lobby -------------------------------------------------------------------------------------------------

    def _connect(self) -> "zmq.Socket[Any]":
        return open_socket(self._context, zmq.DEALER, self._address, bind=False, token=self._token)

    def _send(self, message: FromHost) -> None:
        self._socket.send(encode(message))

    def _receive(self) -> ToHost | None:
        while self._socket.poll(0):
            if (message := self._from_lobby.read(self._socket.recv())) is not None:
                return message
        return None

    def _look_at_silence(self) -> None:
        silent = time.monotonic() - self._heard
        if self._known and silent > PATIENCE:
            tell(f"{self._join.name}: nothing heard of {self._address} for {PATIENCE:g} s; joining again")
            self._end_round()
            self._known = False
        if not self._known and silent > self._word:
            self._word *= 2
            tell(
                f"{self._join.name}: no answer from {self._address} for {silent:.0f} s: either nothing listens there "
                f"yet, or a firewall is in between, or its --token is another one; still trying"
            )
            self._socket.close(linger=0)
            self._socket = self._connect()

    def _obey(self, message: ToHost) -> None:
        if isinstance(message, Heard):
            if not message.known:  # another rank 0 than before, or one that waited too long
                self._end_round()
                self._known = False
        elif isinstance(message, Refuse):
            self._refused = message.reason
        elif isinstance(message, Stop):
            self._end_round()
        elif isinstance(message, Prepare):
            self._end_round()
            self._work = message
            stages = ", ".join(map(str, message.stages))
            tell(f"{self._join.name}: to hold stage {stages} of {message.config.stages}; preparing {message.model}")
            self._prepare(message)
        elif self._work is None or message.round != self._work.round:
            return
        elif isinstance(message, Piece):
            self._attempt(lambda work: self._take(work, message))
        elif self._config is None:
            return
        elif isinstance(message, Prove):
            reports = prove(self._config.endpoints, links_of(self._config.endpoints, self._work.stages))
            self._send(Proved(message.round, reports))
        elif isinstance(message, StartStages):
            self._close_listening()
            self._to_start = self._work.stages

    # --- the round -------------------------------------------------------------------------------------------------

    def _prepare(self, work: Prepare) -> None:
        """Has the model made ready: by its name, from a path on this host, or file by file from rank 0's."""
        if not work.files or self._local_model is not None or Path(work.model).exists():
            self._preparing = _prepare(self._local_model or work.model, work.revision)
        else:
            self._attempt(self._begin_download)

    def _begin_download(self, work: Prepare) -> None:
        folder = cache_folder() / f"joined-{work.digest}"
        if folder.exists():
            self._listen(work, folder)
        else:
            size = sum(file.size for file in work.files)
            tell(f"{self._join.name}: fetching {size / 2**20:.0f} MiB from rank 0's host")
            self._download = Download(folder, work.files)
            self._ask(work, self._download)

    def _ask(self, work: Prepare, download: Download) -> None:
        if (wanted := download.wanted) is not None:
            self._send(Fetch(work.round, *wanted))
        else:
            self._download = None
            self._listen(work, download.finish())

    def _take(self, work: Prepare, piece: Piece) -> None:
        if self._download is not None:
            self._download.take(piece)
            self._ask(work, self._download)

    def _attempt(self, step: Callable[[Prepare], None]) -> None:
        """Takes a step of the round, or gives it up: for good where this host will never be able to."""
        assert self._work is not None
        try:
            step(self._work)
        except (AddressInUse, ConfigError) as error:
            self._give_up(str(error), permanent=isinstance(error, ConfigError))

    def _look_at_processes(self) -> None:
        if self._work is not None and self._preparing is not None and self._preparing.poll() is not None:
            self._attempt(self._prepared)
        if self._to_start and self._config is not None and not self._fork_server.importing:
            self._start(self._config)
        if self._work is not None and (child := self._stages.ended()) is not None:
            self._give_up(child.exit_text, permanent=False)

    def _prepared(self, work: Prepare) -> None:
        done, self._preparing = self._preparing, None
        assert done is not None
        assert done.stdout is not None
        if done.returncode:
            said = "see its log" if done.returncode == _TOLD else f"exit code {done.returncode}"
            raise ConfigError(f"the model {work.model} cannot be prepared there ({said})")
        self._listen(work, Path(done.stdout.read().splitlines()[-1]))

    def _listen(self, work: Prepare, folder: Path) -> None:
        """Answers that everything is ready for the links to be proved."""
        self._config = msgspec.structs.replace(work.config, model=str(folder))
        endpoints = self._config.endpoints
        self._listening = Listening(endpoints, listening_addresses(endpoints, work.stages))
        self._send(Prepared(work.round, engine_fingerprint(self._config)))

    def _start(self, config: EngineConfig) -> None:
        path = self._folder / "engine.json"
        save_config(config, path)
        start: Spawn = self._fork_server.spawn if self._fork_server.ready() else spawn
        for stage in self._to_start:
            arguments = ("workers", "--stage", str(stage), "--config", str(path))
            self._stages.children.append(start(f"stage {stage}", *arguments, threads=config.threads))
        self._to_start = ()

    def _give_up(self, reason: str, *, permanent: bool) -> None:
        """This host's part of the round is over."""
        assert self._work is not None
        tell(f"{self._join.name}: {reason}", error=permanent)
        number = self._work.round
        self._end_round()
        self._send(HostEnded(number, reason, permanent))

    def _end_round(self) -> None:
        if self._preparing is not None:
            self._preparing.kill()
            self._preparing.wait()
        if self._download is not None:
            self._download.cancel()
        self._stages.stop_all(_GRACE)
        self._close_listening()
        self._work, self._preparing, self._download, self._config = None, None, None, None
        self._to_start = ()

    def _close_listening(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None


def _prepare(model: str, revision: str | None) -> "subprocess.Popen[str]":
    """Fetches and converts the model; the last line of its output is the folder."""
    command = [sys.executable, "-m", "workers.prepare", model]
    if revision is not None:
        command += ["--revision", revision]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=parent_variable())


def _described(join: Join) -> str:
    return ", ".join(
        f"{seat.device} ({seat.memory_bytes / 2**30:.1f} GiB free"
        + (f", reads {seat.bytes_per_second / 1e9:.1f} GB/s)" if seat.bytes_per_second else ")")
        for seat in join.seats
    )

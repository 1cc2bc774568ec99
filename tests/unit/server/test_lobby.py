"""The lobby against hosts that are played here: who is seated, sent away, waited for, and what noise does."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import zmq

from server.hosts.lobby import Lobby
from server.hosts.model_files import SharedModel
from server.hosts.roster import Seating
from workers.hosts.download import Download
from workers.shared.bus import encode, open_socket
from workers.shared.config import Endpoints, EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.fingerprint import package_version
from workers.shared.hosts.link_proof import Listening
from workers.shared.hosts.messages import (
    Alive,
    Fetch,
    FromHost,
    Heard,
    HostEnded,
    Join,
    Leave,
    LinkReport,
    ModelFile,
    Piece,
    Prepare,
    Prepared,
    Prove,
    Proved,
    Refuse,
    Seat,
    StartStages,
    Stop,
    ToHost,
)
from workers.shared.hosts.tokens import draw_token
from workers.shared.processes.free_port import free_port

TOKEN = draw_token()
MINE = {"version": "1", "weights": "abc"}
SECONDS = 30.0
M = TypeVar("M")


class Host:
    """A host of one seat, whose answers the test chooses."""

    def __init__(self, address: str, token: str = TOKEN) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = open_socket(self._context, zmq.DEALER, address, bind=False, token=token)

    def say(self, message: FromHost | bytes) -> None:
        self._socket.send(message if isinstance(message, bytes) else encode(message))

    def join(self, stage: int | None = None, version: str | None = None) -> "Host":
        seats = (Seat("cpu", 1 << 30, 0.0),)
        self.say(Join("a host", "127.0.0.1", seats, version or package_version(), stage))
        return self

    def wait_for(self, kind: type[M], milliseconds: int = int(SECONDS * 1000)) -> M:
        """The next message of a kind; others are passed over."""
        while self._socket.poll(milliseconds):
            message = msgspec.msgpack.decode(self._socket.recv(), type=ToHost)
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__}")

    def hears_nothing(self, milliseconds: int = 300) -> bool:
        return not self._socket.poll(milliseconds)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def model(tmp_path: Path) -> SharedModel:
    """A model of two files that others cannot fetch by name."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(9 << 20))
    return SharedModel("/models/m", tmp_path, "digest", by_files=True)


@pytest.fixture
def lobby(address: str, model: SharedModel) -> Iterator[Lobby]:
    opened = Lobby(address, None, TOKEN, model, again=0.05)
    yield opened
    opened.close()


@pytest.fixture
def host(address: str) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(token: str = TOKEN) -> Host:
        hosts.append(Host(address, token))
        return hosts[-1]

    yield make
    for made in hosts:
        made.close()


def plan(seating: Seating) -> EngineConfig:
    """Enough of a configuration: rank 0 listens where nobody else does."""
    stages = len(seating)
    endpoints = Endpoints("ipc://bus", *addresses(free_port(1 + 2 * stages), stages), token=TOKEN)
    return EngineConfig("folder", (1,) * stages, endpoints, 16)


def addresses(port: int, stages: int) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Of the results, and of each stage's control and data, from a port on."""
    all_of_them = [f"tcp://127.0.0.1:{port + place}" for place in range(1 + 2 * stages)]
    return all_of_them[0], tuple(all_of_them[1 : 1 + stages]), tuple(all_of_them[1 + stages :])


@pytest.fixture
def assembling(lobby: Lobby) -> Iterator[Callable[[int], "Future[EngineConfig]"]]:
    pool = ThreadPoolExecutor()

    def begin(stages: int) -> "Future[EngineConfig]":
        return pool.submit(lobby.assemble, stages, plan, lambda _: MINE)

    yield begin
    pool.shutdown(wait=False)


def go_along(host: Host, links: tuple[LinkReport, ...] = ()) -> Prepare:
    """Answers as a good host does."""
    work = host.wait_for(Prepare)
    host.say(Prepared(work.round, MINE))
    host.wait_for(Prove)
    host.say(Proved(work.round, links))
    return work


def test_hosts_get_stages_model_and_configuration_and_start_together(
    lobby: Lobby, host: Callable[..., Host], assembling: Callable[[int], "Future[EngineConfig]"]
) -> None:
    one, other = host().join(stage=1), host().join()
    engine = assembling(2)
    threads = [threading.Thread(target=go_along, args=(member,)) for member in (one, other)]
    for thread in threads:
        thread.start()
    config = engine.result(SECONDS)
    for thread in threads:
        thread.join(SECONDS)
    lobby.start()
    assert (one.wait_for(StartStages).round, other.wait_for(StartStages).round) == (1, 1)
    assert config.stages == 2


def test_stages_are_given_as_asked_for(
    host: Callable[..., Host], assembling: Callable[[int], "Future[EngineConfig]"]
) -> None:
    one, other = host().join(stage=1), host().join()
    engine = assembling(2)
    assert (one.wait_for(Prepare).stages, other.wait_for(Prepare).stages) == ((1,), (0,))
    assert not engine.done()
    other.say(Leave())
    one.wait_for(Stop)  # the round is over, for a stage has no host
    another = host().join()
    for work in (go_along_in_background(one), go_along_in_background(another)):
        work.join(SECONDS)
    engine.result(SECONDS)


def go_along_in_background(host: Host) -> threading.Thread:
    thread = threading.Thread(target=go_along, args=(host,))
    thread.start()
    return thread


def test_a_host_with_another_model_is_sent_away_and_the_next_one_taken(
    host: Callable[..., Host], assembling: Callable[[int], "Future[EngineConfig]"]
) -> None:
    stranger = host().join()
    engine = assembling(1)
    work = stranger.wait_for(Prepare)
    stranger.say(Prepared(work.round, MINE | {"weights": "xyz"}))
    assert "weights is abc for rank 0, xyz" in stranger.wait_for(Refuse).reason
    go_along(host().join())
    engine.result(SECONDS)


def test_a_link_that_is_broken_is_tried_again(
    host: Callable[..., Host], assembling: Callable[[int], "Future[EngineConfig]"], capsys: pytest.CaptureFixture[str]
) -> None:
    member = host().join()
    engine = assembling(1)
    go_along(member, (LinkReport("stage 0 to rank 0", "tcp://10.0.0.1:5551", problem="refused: nothing listens"),))
    go_along(member)
    engine.result(SECONDS)
    said = capsys.readouterr().err
    assert "link stage 0 to rank 0 at 10.0.0.1:5551: refused: nothing listens" in said
    assert "nothing gets through stage 0 to rank 0" in said


def test_an_address_of_rank_0_that_is_taken_is_tried_again(
    lobby: Lobby, host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("server.hosts.lobby.Listening", partial(Listening, patience=0.05))
    member = host().join()
    port = free_port(3)
    config = EngineConfig("folder", (1,), Endpoints("ipc://bus", *addresses(port, 1), token=TOKEN), 16)
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", port)):
            engine = pool.submit(lobby.assemble, 1, lambda _: config, lambda _: MINE)
            member.say(Prepared(member.wait_for(Prepare).round, MINE))
            again = member.wait_for(Prepare)
        member.say(Prepared(again.round, MINE))
        member.wait_for(Prove)
        member.say(Proved(again.round, ()))
        assert engine.result(SECONDS) == config
    assert f"cannot listen at tcp://127.0.0.1:{port}" in capsys.readouterr().err


def test_a_host_that_cannot_is_sent_away_and_one_that_fails_is_asked_again(
    host: Callable[..., Host], assembling: Callable[[int], "Future[EngineConfig]"]
) -> None:
    unlucky = host().join()
    engine = assembling(1)
    unlucky.say(HostEnded(unlucky.wait_for(Prepare).round, "stage 0 left with exit code 1"))
    unlucky.say(HostEnded(unlucky.wait_for(Prepare).round, "no such model", permanent=True))
    assert unlucky.wait_for(Refuse).reason == "no such model"
    go_along(host().join())
    engine.result(SECONDS)


def test_another_version_is_refused_and_what_it_says_meanwhile_means_nothing(
    lobby: Lobby, host: Callable[..., Host], assembling: Callable[[int], "Future[EngineConfig]"]
) -> None:
    old = host().join(version="0.0.1")
    assert "install the same" in old.wait_for(Refuse).reason
    for noise in (b"", b"\xc1", b"\x93\x01\x02", encode(Alive()), encode(Proved(7, ())), bytes(1000)):
        old.say(noise)
    member = host().join()
    member.wait_for(Heard)
    engine = assembling(1)
    go_along(member)
    engine.result(SECONDS)


def test_the_files_of_a_model_are_fetched_piece_by_piece_and_no_others(
    host: Callable[..., Host], assembling: Callable[[int], "Future[EngineConfig]"], tmp_path: Path, model: SharedModel
) -> None:
    member = host().join()
    engine = assembling(1)
    work = member.wait_for(Prepare)
    assert {file.name for file in work.files} == {"config.json", "model.safetensors"}
    download = Download(tmp_path / "cache" / "joined", work.files)
    while (wanted := download.wanted) is not None:
        member.say(Fetch(work.round, *wanted))
        download.take(member.wait_for(Piece))
    folder = download.finish()
    for name in ("config.json", "model.safetensors"):
        assert (folder / name).read_bytes() == (model.folder / name).read_bytes()
    for name, offset in (
        ("../secret", 0),
        ("/etc/passwd", 0),
        ("config.json", 1 << 40),
        ("config.json", (1 << 64) - 1),
    ):
        member.say(Fetch(work.round, name, offset))
        assert member.wait_for(Piece).data == b""
    member.say(Leave())
    go_along(host().join())
    engine.result(SECONDS)


def test_a_file_that_leads_out_of_its_folder_or_grows_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="offers a file"):
        Download(tmp_path / "joined", [ModelFile("../escaped", 1)])
    download = Download(tmp_path / "joined", [ModelFile("config.json", 2)])
    download.take(Piece(1, "other.json", 0, b"xx"))  # not what was asked for
    with pytest.raises(ConfigError, match="has changed"):
        download.take(Piece(1, "config.json", 0, b"longer"))
    download.cancel()
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_the_lobby_does_not_know_is_told_so(lobby: Lobby, host: Callable[..., Host]) -> None:
    member = host()
    member.say(Alive())
    assert not member.wait_for(Heard).known
    assert member.join().wait_for(Heard).known


def test_without_the_token_nobody_is_heard(lobby: Lobby, host: Callable[..., Host]) -> None:
    assert host(draw_token()).join().hears_nothing()
    host().join().wait_for(Heard)


def test_an_address_in_use_is_named(lobby: Lobby, address: str, model: SharedModel) -> None:
    with pytest.raises(ConfigError, match=f"--gather-at {address}"):
        Lobby(address, None, TOKEN, model)

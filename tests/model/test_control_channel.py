"""A stage's control channel belongs to one rank 0 and ends with it, over links and over ZeroMQ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from speculation.stage_lines import StageLines, open_lines
from speculation.wakeup import Wakeup
from workers.shared.bus import encode
from workers.shared.config import Endpoints
from workers.shared.errors import PeerLost
from workers.shared.messages import Ping, Pong, Shutdown, StageTimings
from workers.stage.channel import ControlChannel, open_channel

PATIENCE = 60.0  # seconds


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(params=["unix", "ipc"])
def endpoints(request: pytest.FixtureRequest, tmp_path: Path) -> Endpoints:
    base = f"{request.param}://{tmp_path}"
    return Endpoints(bus="", results=f"{base}/results", control=(f"{base}/control",), data=())


class Rank0:
    """Its end of the channels to one stage."""

    def __init__(self, context: "zmq.Context[Any]", endpoints: Endpoints) -> None:
        self._wakeup = Wakeup()
        self.lines: StageLines = open_lines(context, endpoints, None, self._wakeup)

    def wait(self, seconds: float = PATIENCE) -> None:
        self.lines.noticed(self._wakeup.wait(seconds))


@pytest.fixture
def rank_0(context: "zmq.Context[Any]", endpoints: Endpoints) -> Rank0:
    return Rank0(context, endpoints)


def connected(
    context: "zmq.Context[Any]", endpoints: Endpoints, rank_0: Rank0, silence: float = PATIENCE
) -> ControlChannel:
    """A channel on which both sides have been heard."""
    channel = open_channel(context, endpoints, 0, silence)
    channel.report(Pong(1, 0, StageTimings()))
    while rank_0.lines.receive() is None:
        rank_0.wait()
    rank_0.lines.announce(encode(Ping(1)))
    assert list(channel.heard(wait=True)) == [Ping(1)]
    return channel


def test_a_stage_leaves_a_rank_0_that_has_gone_though_another_listens_at_its_address(
    context: "zmq.Context[Any]", endpoints: Endpoints, rank_0: Rank0
) -> None:
    channel = connected(context, endpoints, rank_0)
    rank_0.lines.close()
    with pytest.raises(PeerLost, match="rank 0 has gone"):
        list(channel.heard(wait=True))
    Rank0(context, endpoints)
    assert channel.orphaned
    channel.close()


def test_what_rank_0_said_last_is_heard_before_its_end(
    context: "zmq.Context[Any]", endpoints: Endpoints, rank_0: Rank0
) -> None:
    channel = connected(context, endpoints, rank_0)
    rank_0.lines.dismiss(encode(Shutdown()))
    rank_0.lines.close()
    heard = channel.heard(wait=True)
    assert next(heard) == Shutdown()
    channel.close()


def test_a_rank_0_that_falls_silent_is_taken_for_hung(
    context: "zmq.Context[Any]", endpoints: Endpoints, rank_0: Rank0
) -> None:
    channel = connected(context, endpoints, rank_0, silence=0.05)
    with pytest.raises(PeerLost, match=r"nothing heard of rank 0 for 0\.05 s"):
        list(channel.heard(wait=True))
    channel.close()


def test_a_stage_that_leaves_is_missed(context: "zmq.Context[Any]", endpoints: Endpoints, rank_0: Rank0) -> None:
    connected(context, endpoints, rank_0).close()
    departed: list[int] = []
    while not departed:
        rank_0.wait(0.01)
        rank_0.lines.receive()
        departed = rank_0.lines.departed()
    assert departed == [0]


def test_a_stage_may_come_again(context: "zmq.Context[Any]", tmp_path: Path) -> None:
    endpoints = Endpoints(bus="", results="", control=(f"unix://{tmp_path}/control",), data=())
    rank_0 = Rank0(context, endpoints)
    for _ in range(3):
        connected(context, endpoints, rank_0).close()

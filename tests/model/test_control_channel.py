"""A stage's control channel belongs to one rank 0 and ends with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from workers.shared.bus import encode, open_socket
from workers.shared.errors import PeerLost
from workers.shared.messages import Ping, Shutdown
from workers.stage.loop import ControlChannel

PATIENCE = 30.0  # seconds


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def rank_0(context: "zmq.Context[Any]", tmp_path: Path) -> "zmq.Socket[Any]":
    return open_socket(context, zmq.PUSH, f"ipc://{tmp_path}/control", bind=True)


def connected(
    context: "zmq.Context[Any]", folder: Path, rank_0: "zmq.Socket[Any]", silence: float = PATIENCE
) -> ControlChannel:
    """A channel on which rank 0 has already been heard."""
    control = open_socket(context, zmq.PULL, f"ipc://{folder}/control", bind=False)
    results = open_socket(context, zmq.PUSH, f"ipc://{folder}/results", bind=False)
    channel = ControlChannel(control, results, silence)
    rank_0.send(encode(Ping(1)))
    assert list(channel.heard(wait=True)) == [Ping(1)]
    return channel


def test_a_stage_leaves_a_rank_0_that_has_gone_though_another_listens_at_its_address(
    context: "zmq.Context[Any]", tmp_path: Path, rank_0: "zmq.Socket[Any]"
) -> None:
    channel = connected(context, tmp_path, rank_0)
    rank_0.close()
    with pytest.raises(PeerLost, match="rank 0 has gone"):
        list(channel.heard(wait=True))
    open_socket(context, zmq.PUSH, f"ipc://{tmp_path}/control", bind=True)
    assert channel.orphaned
    channel.close()


def test_what_rank_0_said_last_is_heard_before_its_end(
    context: "zmq.Context[Any]", tmp_path: Path, rank_0: "zmq.Socket[Any]"
) -> None:
    channel = connected(context, tmp_path, rank_0)
    rank_0.send(encode(Shutdown()))
    rank_0.close(linger=5000)
    assert list(channel.heard(wait=True)) == [Shutdown()]
    channel.close()


def test_a_rank_0_that_falls_silent_is_taken_for_hung(
    context: "zmq.Context[Any]", tmp_path: Path, rank_0: "zmq.Socket[Any]"
) -> None:
    channel = connected(context, tmp_path, rank_0, silence=0.05)
    with pytest.raises(PeerLost, match=r"nothing heard of rank 0 for 0\.05 s"):
        list(channel.heard(wait=True))
    channel.close()

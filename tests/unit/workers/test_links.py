"""Links between processes of one host: whole messages, in order, of any size, without ever waiting for the reader."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.shared.errors import PeerLost
from workers.shared.links import INLINE, Link, Listener, connect

SECONDS = 60.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Link, Link]]:
    listener = Listener(f"unix://{tmp_path}/link", "the sender")
    sender = connect(f"unix://{tmp_path}/link", "the receiver", SECONDS)
    receiver = listener.accept(SECONDS)
    assert receiver is not None
    yield sender, receiver
    for end in (sender, receiver, listener):
        end.close()


@pytest.mark.parametrize("size", [1, INLINE, INLINE + 1, 5_000_000])
def test_a_message_of_any_size_arrives_whole(pair: tuple[Link, Link], size: int) -> None:
    sender, receiver = pair
    message = os.urandom(size)
    sender.send(bytearray(message))
    sender.send(b"next")
    assert receiver.wait(SECONDS)
    assert _taken(receiver) == message
    assert _taken(receiver) == b"next"
    assert receiver.receive() is None
    receiver.limit(0.01)
    assert receiver.take() is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.just("take"), st.integers(0, 3 * INLINE)), max_size=40))
def test_what_the_kernel_does_not_take_is_kept_in_order(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    folder = tmp_path_factory.mktemp("link")
    listener = Listener(f"unix://{folder}/link", "the sender")
    sender = connect(f"unix://{folder}/link", "the receiver", SECONDS)
    receiver = listener.accept(SECONDS)
    assert receiver is not None
    sent: list[bytes] = []
    taken: list[bytes] = []
    for number, step in enumerate(steps):
        if step == "take":
            if (message := receiver.receive()) is not None:
                taken.append(bytes(message))
        else:
            sent.append(number.to_bytes(4, "big") + bytes(step))
            sender.send(sent[-1])
    while len(taken) < len(sent):
        sender.flush()
        if (message := receiver.receive()) is not None:
            taken.append(bytes(message))
    assert taken == sent
    assert not sender.kept
    for end in (sender, receiver, listener):
        end.close()


def test_a_sender_never_waits_and_drains_when_asked(pair: tuple[Link, Link]) -> None:
    sender, receiver = pair
    count = 0
    while not sender.kept:
        sender.send(bytes(INLINE))
        count += 1
    with pytest.raises(PeerLost, match="the receiver has taken nothing"):
        sender.drain(0.01)
    reader = threading.Thread(target=lambda: [receiver.take() for _ in range(count)], daemon=True)
    reader.start()
    sender.drain(SECONDS)
    reader.join(SECONDS)
    assert not reader.is_alive()


def test_whoever_waits_for_an_answer_sends_what_was_kept_meanwhile(pair: tuple[Link, Link]) -> None:
    sender, receiver = pair
    count = 0
    while not sender.kept:
        sender.send(bytes(INLINE))
        count += 1

    def answer() -> None:
        for _ in range(count):
            receiver.take()
        receiver.send(b"all is here")

    assert not sender.wait(0.01)
    reader = threading.Thread(target=answer, daemon=True)
    reader.start()
    assert sender.wait(SECONDS)
    assert _taken(sender) == b"all is here"
    assert not sender.kept
    reader.join(SECONDS)


def test_the_end_of_the_peer_is_noticed_after_its_last_message(pair: tuple[Link, Link]) -> None:
    sender, receiver = pair
    sender.send(b"last")
    sender.close()
    assert _taken(receiver) == b"last"
    assert receiver.wait(SECONDS)
    with pytest.raises(PeerLost, match="the sender has gone"):
        receiver.receive()
    with pytest.raises(PeerLost, match="the sender has gone"):
        receiver.send(b"too late")


def test_nobody_else_may_connect(tmp_path: Path) -> None:
    listener = Listener(f"unix://{tmp_path}/link", "somebody")
    assert stat.S_IMODE((tmp_path / "link").stat().st_mode) == 0o600
    listener.close()
    with pytest.raises(PeerLost, match="the listener does not listen at"):
        connect(f"unix://{tmp_path}/link", "the listener", 0.0)


def _taken(link: Link) -> bytes:
    message = link.take()
    assert message is not None
    return bytes(message)

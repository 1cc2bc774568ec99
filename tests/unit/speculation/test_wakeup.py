"""What rank 0 sleeps on: nothing that has arrived is slept through, whichever kind of socket it came by."""

import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from speculation.wakeup import Wakeup

SECONDS = 60.0


@pytest.fixture
def pair() -> Iterator[tuple["zmq.Socket[Any]", "zmq.Socket[Any]"]]:
    context: zmq.Context[Any] = zmq.Context()
    ends = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    ends[0].bind("inproc://pair")
    ends[1].connect("inproc://pair")
    yield ends
    context.destroy(linger=0)


def wait_for(wakeup: Wakeup, descriptor: int) -> int:
    """Sleeps until the descriptor is among what has happened; returns how often that was."""
    deadline = time.monotonic() + SECONDS
    for count in range(1, 1000):
        if any(found == descriptor for found, _ in wakeup.wait(SECONDS)):
            return count
        assert time.monotonic() < deadline
    raise AssertionError("it wakes up for nothing, again and again")


def test_a_message_is_told_of_until_it_is_taken(pair: tuple["zmq.Socket[Any]", "zmq.Socket[Any]"]) -> None:
    here, there = pair
    wakeup = Wakeup()
    descriptor = wakeup.attend(here)
    there.send(b"one")
    there.send(b"two")
    for expected in (b"one", b"two"):
        wait_for(wakeup, descriptor)
        wait_for(wakeup, descriptor)  # looking changes nothing
        assert here.recv(zmq.NOBLOCK) == expected


def test_a_message_that_came_while_the_socket_was_used_is_not_slept_through(
    pair: tuple["zmq.Socket[Any]", "zmq.Socket[Any]"],
) -> None:
    here, there = pair
    wakeup = Wakeup()
    descriptor = wakeup.attend(here)
    for _ in range(100):
        there.send(b"question")
        here.send(b"something else")  # which takes note of the question, so that the descriptor does not tell of it
        wait_for(wakeup, descriptor)
        assert here.recv(zmq.NOBLOCK) == b"question"
        there.recv()


def test_descriptors_are_watched_for_what_they_are_watched_for() -> None:
    wakeup, (one, other) = Wakeup(), socket.socketpair()
    with one, other:
        wakeup.watch(one.fileno())
        assert wakeup.wait(0.0) == []
        other.send(b"x")
        assert wakeup.wait(SECONDS) == [(one.fileno(), select.POLLIN)]
        wakeup.watch(one.fileno(), select.POLLIN | select.POLLOUT)
        assert wakeup.wait(SECONDS) == [(one.fileno(), select.POLLIN | select.POLLOUT)]
        wakeup.forget(one.fileno())
        assert wakeup.wait(0.0) == []

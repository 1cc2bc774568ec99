"""Ports for servers that are started on this host and told where to listen: those of benchmarks and of tests."""

import random
import socket
from contextlib import ExitStack

_PORTS = range(10_000, 32_000)


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row that nothing on the loopback interface has now.

    They lie below those that systems give to outgoing connections (from 32768 on under Linux), one of which would
    otherwise get in before a server that takes its time to start.
    """
    drawn = random.SystemRandom()  # whatever tests do to the other generators
    while True:
        first = drawn.choice(_PORTS)
        with ExitStack() as opened:
            try:
                for port in range(first, first + count):
                    opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first

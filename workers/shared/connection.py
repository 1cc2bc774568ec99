"""Notices when the process at the other end of a ZeroMQ socket has gone, which the socket itself hides.

A socket connects again by itself to whatever is started at the same address. A stage must not do that: it belongs to
the rank 0 with which it was started, so its group ends with that connection.
"""

from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message


class ConnectionWatch:
    """Counts nothing but losses. ZeroMQ reports none for inproc endpoints, whose ends live in one process anyway."""

    def __init__(self, watched: "zmq.Socket[Any]") -> None:
        self._watched = watched
        self.events = watched.get_monitor_socket(zmq.Event.DISCONNECTED)  # readable after a loss, for pollers

    def lost(self) -> bool:
        """Whether an established connection was lost since the last call."""
        lost = False
        while self.events.poll(0):
            recv_monitor_message(self.events)
            lost = True
        return lost

    def close(self) -> None:
        """Ends the watch; to be called before the watched socket is closed."""
        self._watched.disable_monitor()
        self.events.close(linger=0)

"""Notices when the process at the other end of a ZeroMQ socket has gone, which the socket itself hides.

A socket connects again by itself to whatever is started at the same address. A stage must not do that: it belongs to
the rank 0 with which it was started, so its group ends with that connection.
"""

from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

_BEGUN = zmq.Event.ACCEPTED | zmq.Event.CONNECTED


class ConnectionWatch:
    """Counts nothing but losses. ZeroMQ reports none for inproc endpoints, whose ends live in one process anyway.

    Somebody who connects without speaking ZeroMQ, and leaves again, as port scanners do, is no loss.
    """

    def __init__(self, watched: "zmq.Socket[Any]") -> None:
        self._watched = watched
        self._strangers: set[int] = set()  # descriptors of connections that have not introduced themselves
        # Readable after a loss, among other things; for pollers.
        self.events = watched.get_monitor_socket(_BEGUN | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED)

    def lost(self) -> bool:
        """Whether an established connection was lost since the last call."""
        lost = False
        while self.events.poll(0):
            message = recv_monitor_message(self.events)
            event, descriptor = message["event"], message["value"]
            if event & _BEGUN:
                self._strangers.add(descriptor)
            elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._strangers.clear()  # the event does not say whose: better one restart too many than none
            elif descriptor in self._strangers:
                self._strangers.remove(descriptor)
            else:
                lost = True
        return lost

    def close(self) -> None:
        """Ends the watch; to be called before the watched socket is closed."""
        self._watched.disable_monitor()
        self.events.close(linger=0)

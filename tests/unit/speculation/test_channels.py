"""What wakes rank 0 up."""

from pathlib import Path
from typing import Any

import zmq

from speculation.channels import Channels
from workers.shared.bus import encode
from workers.shared.config import Endpoints
from workers.shared.messages import Probe

PATIENCE = 60_000  # milliseconds


def test_a_client_that_asks_before_all_stages_are_ready_does_not_keep_rank_0_awake(tmp_path: Path) -> None:
    """Loading may take minutes, and whoever asks meanwhile is not read: rank 0 used to take a whole core."""
    context: zmq.Context[Any] = zmq.Context()
    base = f"ipc://{tmp_path}"
    channels = Channels(context, Endpoints(f"{base}/bus", f"unix://{tmp_path}/r", (f"unix://{tmp_path}/0",), ()))
    client = context.socket(zmq.DEALER)
    client.connect(f"{base}/bus")
    client.send(encode(Probe(7)))
    assert channels._bus.poll(PATIENCE)
    assert channels._wakeup.wait(0) == []
    channels.take_requests()
    assert channels._wakeup.wait(0) != []
    request = channels.request()
    assert request is not None
    assert request[1] == Probe(7)
    channels.close()
    context.destroy(linger=0)

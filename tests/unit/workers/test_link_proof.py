"""Links between hosts, proved on loopback: what gets through, and why something does not."""

import socket
import threading

import pytest

from workers.shared.config import Endpoints
from workers.shared.errors import AddressInUse
from workers.shared.hosts.link_proof import Listening, links_of, listening_addresses, prove
from workers.shared.hosts.tokens import draw_token

TOKEN = draw_token()
PATIENT, MOMENT = 10.0, 0.5  # seconds


def endpoints(token: str = TOKEN) -> Endpoints:
    """Of two stages, with ports that were free a moment ago."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
    results, *rest = (f"tcp://127.0.0.1:{probe.getsockname()[1]}" for probe in probes)
    for probe in probes:
        probe.close()
    return Endpoints("ipc://bus", results, tuple(rest[:2]), tuple(rest[2:]), token=token)


def test_every_link_that_begins_here_is_proved_by_its_name() -> None:
    ends = endpoints()
    rank_0 = Listening(ends, [ends.results, *ends.control])
    stage_1 = Listening(ends, listening_addresses(ends, (1,)))
    reports = prove(ends, links_of(ends, (0,)), PATIENT)
    rank_0.close()
    stage_1.close()
    assert [report.problem for report in reports] == ["", "", ""]
    assert [report.link for report in reports] == [
        "stage 0 to rank 0, for control", "stage 0 to rank 0, for results", "stage 0 to stage 1",
    ]  # fmt: skip
    assert all(report.round_trip > 0 and report.bytes_per_second > 0 for report in reports)


def test_addresses_are_free_again_once_a_proof_is_over() -> None:
    ends = endpoints()
    for _ in range(3):
        Listening(ends, [ends.results]).close()


def test_an_address_that_is_taken_for_a_moment_is_waited_for() -> None:
    ends = endpoints()
    before = Listening(ends, [ends.results])
    leaving = threading.Timer(MOMENT, before.close)
    leaving.start()
    Listening(ends, [ends.results], PATIENT).close()
    leaving.join()


def test_nobody_there_is_told_from_somebody_else_there() -> None:
    ends = endpoints()
    (nobody,) = prove(ends, [("a link", ends.results)], MOMENT)
    assert "refused" in nobody.problem
    with socket.create_server(("127.0.0.1", int(ends.results.rsplit(":", 1)[1]))):
        (other,) = prove(ends, [("a link", ends.results)], MOMENT)
    assert "something else listens" in other.problem
    (unknown,) = prove(ends, [("a link", "tcp://no-such-host.invalid:5550")], MOMENT)
    assert "unknown" in unknown.problem


def test_another_token_proves_nothing() -> None:
    ends = endpoints()
    listening = Listening(ends, [ends.results])
    (report,) = prove(endpoints(draw_token()), [("a link", ends.results)], MOMENT)
    listening.close()
    assert report.problem


def test_an_address_in_use_is_named() -> None:
    ends = endpoints()
    listening = Listening(ends, [ends.results])
    with pytest.raises(AddressInUse, match=ends.results):
        Listening(ends, [ends.results], MOMENT)
    listening.close()

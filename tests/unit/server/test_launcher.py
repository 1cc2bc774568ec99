"""What the launcher decides by itself: restarts, its folder, and what it hears of its own server."""

import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.launcher.own_server import base_url, not_ready
from server.launcher.restarts import RestartBudget
from server.launcher.run_folder import make_run_folder
from server.settings import ServerOptions
from workers.shared.errors import ConfigError
from workers.shared.processes.children import Group, spawn


@given(st.lists(st.floats(0, 50), max_size=30), st.integers(1, 5), st.floats(0.5, 100))
def test_no_window_has_more_restarts_than_allowed(gaps: list[float], restarts: int, window: float) -> None:
    budget, now, allowed = RestartBudget(restarts, window), 0.0, list[float]()
    for gap in gaps:
        now += gap
        recent = [then for then in allowed[-restarts:] if now - then < window]
        assert budget.allow(now) == (len(recent) < restarts)
        if len(recent) < restarts:
            allowed.append(now)


def test_sockets_find_a_folder_with_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("TMPDIR", str(deep))
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        folder = make_run_folder()
        assert str(folder).startswith(short)
        assert not list(deep.iterdir()), "nothing is left where it did not fit"
        monkeypatch.setenv("TMPDIR", short)
        assert make_run_folder().parent == Path(short), "the usual place comes first"
    assert make_run_folder().rename(tmp_path / "moved").is_dir(), "folders that are not there are passed over"


def test_a_machine_without_a_folder_for_sockets_is_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(ConfigError, match=r"/tmp: Permission denied.*set TMPDIR"):
        make_run_folder()


class Answers(BaseHTTPRequestHandler):
    """503 with a reason until `ready` is set on the server."""

    def do_GET(self) -> None:
        ready = getattr(self.server, "ready", False)
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b"{}" if ready else b'{"error": {"message": "stage 1 sleeps"}}')

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def http() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_its_own_server_is_never_asked_through_a_proxy(http: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    options = ServerOptions(host="0.0.0.0", port=http.server_port)
    assert not_ready(options) == "stage 1 sleeps"
    http.ready = True  # type: ignore[attr-defined]
    assert not_ready(options) is None


def test_a_server_that_is_not_there_is_not_ready() -> None:
    options = ServerOptions(host="::", port=9)
    assert base_url(options) == "http://[::1]:9"
    assert "does not answer" in str(not_ready(options))


def test_processes_end_with_the_first_of_them_or_are_killed() -> None:
    sleepers = Group(
        [spawn("sleeper", "workers.shared.processes.tied", "timeit", "-n1", "-r1", "-s", _SLEEP) for _ in range(2)]
    )
    processes = [child.process for child in sleepers.children]
    sleepers.stop(grace=0.0)
    assert all(process.poll() is not None for process in processes)


_SLEEP = "import threading; threading.Event().wait(600)"
_PARENT = """
import os, subprocess, sys
environment = os.environ | {"ECHELON_PARENT_PID": str(os.getpid())}
command = [sys.executable, "-m", "workers.shared.processes.tied", "timeit", "-n1", "-r1", "-s", sys.argv[1]]
child = subprocess.Popen(command, env=environment)
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent")
def test_somebody_elses_program_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, _SLEEP], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    descriptor = os.pidfd_open(pid)
    parent.kill()
    parent.wait(10)
    try:
        assert _ends(descriptor, 30), "the download goes on"
    finally:
        os.close(descriptor)
        parent.stdout.close()


def _ends(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])

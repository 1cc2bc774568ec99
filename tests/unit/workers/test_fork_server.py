"""Children that begin as copies: of whom they are children, what they are called, and what happens where it fails."""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import command
from workers.shared.processes.children import Group, spawn, wait_for_any_exit
from workers.shared.processes.forked import Forked, ForkServer

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="copies are made on Linux only"),
    pytest.mark.timeout(120),
]

_PR_SET_CHILD_SUBREAPER = 36
_HEAVY = """
from pathlib import Path
with (Path(__file__).parent / "imports").open("a") as imports:
    imports.write("once\\n")
"""
_CHILD = """
import json, os, sys, threading
from pathlib import Path
import heavy
about = {"parent": os.getppid(), "group": os.getpgid(0), "arguments": sys.argv[1:]}
Path(sys.argv[1]).write_text(json.dumps(about))
if sys.argv[2:] == ["stay"]:
    print(os.getpid(), flush=True)
    threading.Event().wait(600)
sys.exit(3)
"""
_LAUNCHER = """
import sys
from workers.shared.processes.forked import ForkServer
child = ForkServer("heavy").spawn("child", "child", sys.argv[1], "stay")
child.process.wait()
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules that can be imported by children; this process adopts only while a test runs."""
    (tmp_path / "heavy.py").write_text(_HEAVY)
    (tmp_path / "child.py").write_text(_CHILD)
    (tmp_path / "broken.py").write_text("raise ImportError('on purpose')")
    (tmp_path / "threaded.py").write_text("import threading; threading.Thread(target=threading.Event().wait).start()")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    yield tmp_path
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def told(path: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(path.read_text())
    return about


def imports(programs: Path) -> int:
    return len((programs / "imports").read_text().splitlines())


def test_copies_are_the_launchers_own_children_and_import_nothing_again(programs: Path) -> None:
    with ForkServer("heavy") as server:
        children = [server.spawn(name, "child", str(programs / name)) for name in ("a", "b")]
        for child in children:
            assert isinstance(child.process, Forked)
            assert child.process.wait(60) == 3
            assert child.exit_text == f"{child.name} left with exit code 3"
            about = told(programs / child.name)
            assert about == {
                "parent": os.getpid(),
                "group": child.process.pid,
                "arguments": [str(programs / child.name)],
            }
    assert imports(programs) == 1


def test_functions_are_called_once_for_all_copies(programs: Path) -> None:
    (programs / "called.py").write_text("def f():\n    import heavy\n")
    with ForkServer("called:f") as server:
        for name in ("a", "b"):
            child = server.spawn(name, "child", str(programs / name))
            assert isinstance(child.process, Forked)
            assert child.process.wait(60) == 3
    assert imports(programs) == 1


def test_whether_it_is_still_importing_is_known_without_waiting(programs: Path) -> None:
    os.mkfifo(programs / "gate")
    (programs / "slow.py").write_text("import heavy, pathlib\npathlib.Path(__file__).with_name('gate').read_text()\n")
    with ForkServer("slow") as server:
        assert not server.importing
        server.prepare()
        assert server.importing
        (programs / "gate").write_text("go on")
        child = server.spawn("a", "child", str(programs / "a"))
        assert not server.importing
        assert isinstance(child.process, Forked)
        assert child.process.wait(60) == 3
    with ForkServer("broken") as server:
        server.prepare()
        assert not isinstance(server.spawn("b", "child", str(programs / "b")).process, Forked)
        assert not server.importing


def test_a_copy_is_called_what_it_is_and_can_be_ended(programs: Path) -> None:
    with ForkServer("heavy") as server:
        child = server.spawn("child", "child", str(programs / "a"), "stay")
        line = [sys.executable, "-m", "child", str(programs / "a"), "stay"]
        assert command(child.process.pid)[: len(line)] == line
        with pytest.raises(subprocess.TimeoutExpired):
            child.process.wait(0)
        assert child.process.poll() is None
        child.process.terminate()
        assert child.process.wait(60) == -signal.SIGTERM
        child.process.kill()  # it is gone, and its pid may be another's
        assert child.exit_text == "child was killed by SIGTERM"


def test_a_copy_ends_with_the_launcher(programs: Path) -> None:
    arguments = [sys.executable, "-c", _LAUNCHER, str(programs / "a")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        descriptor = os.pidfd_open(int(launcher.stdout.readline()))
        launcher.kill()
        try:
            assert select.select([descriptor], [], [], 60)[0]
        finally:
            os.close(descriptor)


@pytest.mark.parametrize("module", ["broken", "threaded"])
def test_what_cannot_be_copied_is_started_as_usual(programs: Path, module: str) -> None:
    with ForkServer(module) as server:
        for name in ("a", "b"):
            child = server.spawn(name, "child", str(programs / name))
            assert not isinstance(child.process, Forked)
            assert child.process.wait(60) == 3
    assert imports(programs) == 2


def test_a_server_that_was_killed_is_replaced(programs: Path) -> None:
    with ForkServer("heavy") as server:
        server.spawn("a", "child", str(programs / "a")).process.wait(60)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        child = server.spawn("b", "child", str(programs / "b"))
        assert isinstance(child.process, Forked)
        assert child.process.wait(60) == 3
    assert imports(programs) == 2


def test_whoever_else_ends_is_buried_while_children_are_waited_for(programs: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    group = Group([spawn("child", "child", str(programs / "a"))])
    wait_for_any_exit([group])
    assert group.ended() is not None
    assert not Path(f"/proc/{stranger.pid}").exists()
    stranger.wait(60)

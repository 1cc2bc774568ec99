"""The connection to the next smaller model, and the supervisor that starts it again; no torch."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from speculation.cascade.line import SmallerLine
from speculation.cascade.messages import LeaveCascade, ModelsReport, OpenText, ToSmaller, WriteText
from speculation.decisions.cascade.smaller import Smaller
from speculation.decisions.cascade.texts import ModelText
from workers.shared.bus import encode
from workers.shared.cascade.figures import ModelFigures
from workers.shared.errors import PeerLost
from workers.shared.links import Link, Listener
from workers.shared.messages import Sampling

SECONDS = 30.0


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listening = Listener(f"unix://{tmp_path}/small", "bigger")
    yield listening
    listening.close()


class Ends:
    """A line with one slot, and what is at its other end."""

    def __init__(self, folder: Path) -> None:
        self.end = Smaller(0)
        self.text = ModelText([1, 2, 3])
        self.end.open(self.text, 3, Sampling(seed=0))
        self.line = SmallerLine(f"unix://{folder}/small", "small", [self.end])

    def reach(self, listener: Listener) -> Link:
        while not self.line.connected:
            self.line.tell()
        link = listener.accept(SECONDS)
        assert link is not None
        return link


def read(link: Link, seconds: float = SECONDS) -> ToSmaller | None:
    if not link.wait(seconds):
        return None
    data = link.receive()
    assert data is not None
    message: ToSmaller = msgspec.msgpack.decode(data, type=ToSmaller)
    return message


def test_texts_go_down_and_drafts_come_up(tmp_path: Path, listener: Listener) -> None:
    ends = Ends(tmp_path)
    ends.line.tell()
    link = ends.reach(listener)
    opening = read(link)
    assert isinstance(opening, OpenText)
    assert opening.tokens == [1, 2, 3]
    link.send(encode(WriteText(0, opening.number, 3, [4, 5])))
    link.send(encode(ModelsReport([ModelFigures("small", written=2)])))
    link.send(encode(WriteText(7, opening.number, 3, [4, 5])))  # no such slot
    link.send(b"nonsense")
    ends.line.arrived()
    assert ends.end.drafts() == [4, 5]
    assert [figures.written for figures in ends.line.figures()] == [2]
    ends.text.write(3, [4])
    ends.line.tell()
    assert read(link) == WriteText(0, opening.number, 3, [4])
    assert ends.end.drafts() == [5]
    ends.line.dismiss()
    assert read(link) == LeaveCascade()
    ends.line.close()


def test_a_process_that_has_gone_is_noticed_and_its_successor_told_everything(
    tmp_path: Path, listener: Listener
) -> None:
    ends = Ends(tmp_path)
    link = ends.reach(listener)
    opening = read(link)
    assert isinstance(opening, OpenText)
    link.send(encode(WriteText(0, opening.number, 3, [4, 5])))
    link.close()
    ends.line.arrived()
    assert not ends.line.connected
    assert list(ends.end.drafts()) == []
    ends.text.write(3, [4])
    link = ends.reach(listener)
    ends.line.tell()
    again = read(link)
    assert isinstance(again, OpenText)
    assert again.tokens == [1, 2, 3, 4]
    assert again.number != opening.number
    ends.line.close()
    with pytest.raises(PeerLost):
        link.take()


def test_one_that_says_what_cannot_be_is_left_and_told_anew(tmp_path: Path, listener: Listener) -> None:
    ends = Ends(tmp_path)
    link = ends.reach(listener)
    opening = read(link)
    assert isinstance(opening, OpenText)
    link.send(encode(WriteText(0, opening.number, 9, [4, 5])))
    ends.line.arrived()
    assert not ends.line.connected
    ends.line.close()


def test_nothing_piles_up_for_one_that_is_stopped_and_then_it_hears_the_newest(
    tmp_path: Path, listener: Listener
) -> None:
    ends, written = Ends(tmp_path), 20_000
    link = ends.reach(listener)
    for token in range(written):  # nobody reads
        ends.text.write(len(ends.text), [token])
        ends.line.tell()
    heard: list[int] = []
    messages = 0
    while len(heard) < 3 + written:
        message = read(link)
        assert isinstance(message, OpenText | WriteText)
        heard[0 if isinstance(message, OpenText) else message.position :] = message.tokens
        messages += 1
        ends.line.tell()
    assert heard == ends.text.tokens
    assert messages < written / 4
    ends.line.close()


def supervised(*programs: str) -> "subprocess.CompletedProcess[str]":
    """Runs a supervisor of processes with these Python programs."""
    lines = (
        "import subprocess, sys",
        "from speculation.cascade.supervisor import supervise",
        "from workers.shared.processes.children import Child",
        "def starter(text): return lambda: Child('one', subprocess.Popen([sys.executable, '-c', text]))",
        f"sys.exit(supervise([starter(text) for text in {programs!r}]))",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


WAITS = "import signal; signal.pthread_sigmask(signal.SIG_SETMASK, ()); signal.pause()"


def test_one_that_cannot_work_at_all_ends_all_and_one_that_was_told_to_leave_too() -> None:
    assert supervised(WAITS, "raise SystemExit(2)").returncode == 2
    assert supervised(WAITS, "pass").returncode == 0


def test_one_that_fails_is_started_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    fails = f"from pathlib import Path; mark = Path({str(mark)!r}); there = mark.exists(); mark.touch(); assert there"
    ended = supervised(WAITS, fails)
    assert ended.returncode == 0
    assert "one left with exit code 1; restarting it in 0.5 s" in ended.stderr

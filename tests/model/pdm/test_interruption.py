"""Ctrl-C and SIGTERM: the run saves and ends, and nothing of it goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from server.cli import programs
from speculation.training import distill
from speculation.training.interruption import EXIT_INTERRUPTED, Interrupted, StopSignals
from tests.model.pdm.runs import arguments

DEADLINE = 200.0  # seconds


@pytest.fixture
def signals() -> StopSignals:
    return StopSignals()


@pytest.fixture(autouse=True)
def _handlers():  # type: ignore[no-untyped-def]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_a_step_and_for_nothing_else(signals: StopSignals, number: int) -> None:
    signals.install()
    with signals.deferred():
        assert not signals()
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert signals()
    with pytest.raises(Interrupted):
        signal.raise_signal(number)


@pytest.mark.timeout(DEADLINE + 60)
def test_a_trainer_that_is_told_to_stop_saves(target_folder: Path, data_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = arguments(target_folder, data_folder, out, "--steps 100000 --save-every 100000 --init-projections identity")
    command = [sys.executable, "-m", "speculation.training.train", *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[3], env=environment, stderr=subprocess.PIPE, text=True
    ) as trainer:
        try:
            deadline = time.monotonic() + DEADLINE
            while not (out / "curve.jsonl").exists():  # ten steps are done
                assert trainer.poll() is None, trainer.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(0.05)
            trainer.terminate()
            _, told = trainer.communicate(timeout=DEADLINE)
        finally:
            trainer.kill()
    assert trainer.returncode == EXIT_INTERRUPTED, told
    assert "run the same command again" in told
    saved = torch.load(out / "checkpoint.pt", weights_only=True)["step"]
    assert saved >= max(json.loads(line)["step"] for line in (out / "curve.jsonl").read_text().splitlines()) > 0


def test_the_commands_become_the_programs(target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that signals reach them, their exit status is the command's, and nothing is left behind."""

    class Replaced(Exception):
        pass

    def execv(path: str, command: list[str]) -> None:
        assert path == command[0] == sys.executable
        raise Replaced(command[1:])

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(programs, "prepare_model", lambda _model: target_folder)
    for name, rest, expected in (
        ("train", ["--out", "o"], ["--out", "o", "--name", "it"]),
        ("train", ["--name=other"], ["--name=other"]),
        ("distill", ["--out", "o"], ["--out", "o"]),
    ):
        monkeypatch.setattr(programs, "display_name", lambda _model: "it")
        with pytest.raises(Replaced) as replaced:
            programs.run_program(name, ["it", *rest])
        assert replaced.value.args[0] == ["-m", f"speculation.training.{name}", str(target_folder), *expected]


def test_a_distilling_run_ends_without_a_traceback(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distill.Writer, "instructions", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert distill.main([str(target_folder), "--out", str(tmp_path)]) == EXIT_INTERRUPTED
    assert capsys.readouterr().err.splitlines()[-1].startswith("interrupted: ")

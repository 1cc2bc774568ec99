"""Ctrl-C and SIGTERM: the run saves and ends, and nothing of it goes on."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from server.cli import programs
from speculation.training import distill, train
from speculation.training.interruption import EXIT_INTERRUPTED, Interrupted, StopSignals
from speculation.training.run_folder import RunFolder
from tests.model.pdm.runs import arguments


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


def test_a_trainer_that_is_told_to_stop_saves(
    target_folder: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RunFolder.record

    def record_and_stop(folder: RunFolder, entry: dict[str, object]) -> None:
        record(folder, entry)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(RunFolder, "record", record_and_stop)
    options = "--steps 1000 --save-every 1000 --init-projections identity"
    assert train.main(arguments(target_folder, data_folder, tmp_path, options)) == EXIT_INTERRUPTED
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 10


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

"""A calibration is kept where that can be done, and nothing depends on it."""

import errno
from pathlib import Path

import pytest

from speculation.decisions.estimates import Measured, Times
from speculation.kept_calibrations import forget_measured, load_measured, save_measured
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig

MEASURED = Measured({"none": Times(0.01, 0.02, 0.03)}, rows={1: 0.02, 16: 0.025}, free=["ngram"])


def config(threads: int = 1) -> EngineConfig:
    endpoints = Endpoints("inproc://bus", "inproc://results", ("inproc://0",) * 2, ("inproc://1",) * 2)
    return EngineConfig("model", (8, 8), endpoints, 64, drafter=DrafterConfig("ngram"), threads=threads)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path))


def test_what_was_measured_is_found_again_with_the_same_settings_only() -> None:
    assert load_measured(config()) is None
    save_measured(config(), MEASURED)
    assert load_measured(config()) == MEASURED
    assert load_measured(config(threads=2)) is None
    save_measured(config(), Measured({}, spread=2.0))  # the machine was busy: the one before is better
    assert load_measured(config()) == MEASURED
    forget_measured(config())
    assert load_measured(config()) is None


def test_a_full_disk_is_said_and_costs_a_calibration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_bytes

    def half(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    save_measured(config(), MEASURED)
    assert "No space left" in capsys.readouterr().err
    assert load_measured(config()) is None

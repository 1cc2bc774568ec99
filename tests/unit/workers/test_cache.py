"""Prepared models appear complete or not at all, whoever builds them and however that ends."""

import errno
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from workers.prepare.prepared_folders import cache_folder, cached
from workers.shared.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache"


def write(folder: Path) -> None:
    (folder / "file").write_text("content")


def test_builds_once(folder: Path) -> None:
    calls = []

    def build(partial: Path) -> None:
        calls.append(partial)
        write(partial)

    assert cached("model", build) == cached("model", build) == folder / "model"
    assert len(calls) == 1
    assert (folder / "model" / "file").read_text() == "content"
    assert (folder / "model" / "file").stat().st_mode & 0o777 == 0o644


def test_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ECHELON_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "echelon"


def test_failure_leaves_nothing_and_the_next_try_succeeds(folder: Path) -> None:
    def fail(partial: Path) -> None:
        write(partial)
        raise OSError("disk full")

    with pytest.raises(ConfigError, match="disk full"):
        cached("model", fail)
    assert [path.name for path in folder.iterdir()] == ["model.lock"]
    cached("model", write)


def _die_while_building() -> None:
    def build(partial: Path) -> None:
        (partial / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    cached("model", build)


def test_a_killed_builder_leaves_nothing_that_counts(folder: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_while_building)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert (folder / "model.partial" / "half").exists(), "the builder did not get as far as this test wants"
    assert not (folder / "model").exists()
    assert {path.name for path in cached("model", write).iterdir()} == {"file"}


def _build_and_log(log: str) -> None:
    def build(partial: Path) -> None:
        with open(log, "a") as file:
            file.write("built\n")
        for number in range(200):
            (partial / str(number)).write_text("x")

    assert len(list(cached("model", build).iterdir())) == 200


def test_concurrent_callers_build_once_and_see_it_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    log = str(tmp_path / "log")
    processes = [context.Process(target=_build_and_log, args=(log,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 3
    assert Path(log).read_text() == "built\n"


@pytest.mark.parametrize("place", ["/proc/nowhere", "~nobody-of-this-name/cache"])
def test_a_place_that_cannot_be_written_is_named_with_what_to_set(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("ECHELON_CACHE", place)
    with pytest.raises(ConfigError, match=f"the cache {place} cannot be used .*set ECHELON_CACHE"):
        cached("model", write)


def test_a_full_disk_is_named_with_what_to_set(folder: Path) -> None:
    def fill(partial: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConfigError, match=r"No space left on device\); set ECHELON_CACHE"):
        cached("model", fill)
    assert [path.name for path in folder.iterdir()] == ["model.lock"]

"""Lines of all processes, as text and as JSON."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from workers.shared.errors import ConfigError
from workers.shared.processes.logs import configure, tell


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_is_told_as_it_is_and_logged_with_time_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    configure("rank 0")
    tell("stage 1 is missing")
    logging.getLogger("echelon.bus").warning("dropped %d", 3)
    told, logged = capsys.readouterr().err.splitlines()
    assert told == "stage 1 is missing"
    assert logged.endswith("WARNING echelon.bus dropped 3")


def test_json_has_the_process_the_request_and_the_exception(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("ECHELON_LOG_FORMAT", "json")
    configure("API server")
    logging.getLogger("echelon.request").info("done: %s", "é", extra={"request_id": "r-1"})
    tell("cannot go on", error=True)
    try:
        raise ValueError("broken")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    done, told, crash = map(json.loads, capsys.readouterr().err.splitlines())
    assert (done["message"], done["request_id"], done["process"], done["level"]) == (
        "done: é",
        "r-1",
        "API server",
        "info",
    )
    assert (told["message"], told["level"]) == ("cannot go on", "error")
    assert "ValueError: broken" in crash["exception"]


def test_a_level_hides_what_is_below_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_LOG_LEVEL", "error")
    configure("rank 0")
    tell("ready")
    assert capsys.readouterr().err == ""


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match="ECHELON_LOG_FORMAT xml: must be one of text, json"):
        configure("rank 0")


def test_a_program_without_a_log_prints() -> None:
    code = "from workers.shared.processes.logs import tell; tell('loading')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "loading\n"

"""A clock that jumps changes nothing: what decides or measures reads the monotonic clock, or none."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL_CLOCK = re.compile(r"\btime\.(time|time_ns|localtime|gmtime)\b|from time import|\bdatetime\.|import datetime")
# Dates that people and clients read: `created`, a template's date of today, reports of measurements, log lines, spans.
SHOWN = {
    "server/cli/plan.py",
    "server/formatters/base.py",
    "server/launcher/launch.py",
    "server/preparation/template.py",
    "server/tracing/otel.py",
    "speculation/bench/machine.py",
    "speculation/bench/run.py",
    "workers/shared/processes/logs.py",
}


def test_the_wall_clock_is_only_shown() -> None:
    sources = [path for package in ("server", "workers", "speculation") for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 100
    readers = {str(path.relative_to(ROOT)) for path in sources if WALL_CLOCK.search(path.read_text(encoding="utf-8"))}
    assert readers <= SHOWN


def test_decisions_read_no_clock_at_all() -> None:
    rooms = [ROOT / "speculation" / "decisions", ROOT / "workers" / "decisions"]
    sources = [path for room in rooms for path in room.rglob("*.py")]
    assert len(sources) > 5
    assert [path.name for path in sources if re.search(r"^(import|from) time\b", path.read_text(), re.MULTILINE)] == []

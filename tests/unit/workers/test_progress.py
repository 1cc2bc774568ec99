"""What is told of long tasks, and when."""

from contextlib import suppress

import pytest

from workers.shared.progress import Progress, shown_bytes


def test_a_long_task_tells_its_share_its_size_and_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    with Progress("loading", clock=lambda: now) as progress:
        for second in range(1, 6):
            now = 100.0 + second
            progress.update(second * 3 << 20, 18 << 20)
        now = 106.0
        progress.update(18 << 20, 18 << 20)
    assert capsys.readouterr().err.splitlines() == [
        "loading: 16 % of 18 MiB, 3 MiB/s",
        "loading: 50 % of 18 MiB, 3 MiB/s",
        "loading: 83 % of 18 MiB, 3 MiB/s",
        "loading: done in 6.0 s, 18 MiB at 3 MiB/s",
    ]


def test_a_short_task_and_one_that_fails_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with Progress("short", clock=lambda: now) as progress:
        now = 0.9
        progress.update(5, 10)
    with suppress(ValueError), Progress("failing", clock=lambda: now):
        now = 60.0
        raise ValueError
    with Progress("of no known size", clock=lambda: now):
        now = 62.0
    assert capsys.readouterr().err == "of no known size: done in 2.0 s\n"


def test_what_is_counted_need_not_be_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with Progress("recording", clock=lambda: now, shown="{:g} frames".format) as progress:
        now = 2.0
        progress.update(4, 24)
    assert capsys.readouterr().err.splitlines() == [
        "recording: 16 % of 24 frames, 2 frames/s",
        "recording: done in 2.0 s, 4 frames at 2 frames/s",
    ]


def test_bytes_are_shown_in_units_that_people_read() -> None:
    counts = (0, 1023, 1 << 10, 93.5 * (1 << 20), 3.25 * (1 << 30), 700 << 30)
    assert [shown_bytes(count) for count in counts] == [
        "0 bytes", "1023 bytes", "1 KiB", "93.5 MiB", "3.25 GiB", "700 GiB"
    ]  # fmt: skip

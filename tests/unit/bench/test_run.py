"""The order of measuring, and going on after an interruption, with contenders that are made up."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from speculation.bench import run as bench_run
from speculation.bench.analysis.cells import Answer, Folder
from speculation.bench.configuration import BenchSettings, Contender
from speculation.bench.energy import Meter
from speculation.bench.near_ties import Branch
from speculation.bench.progress import Forecast
from speculation.bench.prompts import DataSet, Prompt
from speculation.bench.run import Work, run
from tests.stub_engine import CHOICE, INFO
from workers.shared.errors import ConfigError
from workers.shared.messages import EngineStats, SpeculationCounts, StageTimings, Status

SETTINGS = BenchSettings("tiny", 8)
GIB = 2**30


class Fake:
    """Answers at once, and writes down what it was asked."""

    def __init__(self, contender: Contender, log: list[tuple[Contender, str, int]], fail_at: str | None = None) -> None:
        self.contender = contender
        self.stopped = False
        self.ready = False
        self._log = log
        self._fail_at = fail_at
        self._tokens = 0
        self.branches: list[Branch] = []

    def wait_until_ready(self) -> None:
        self.ready = True

    def answer(self, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
        assert self.ready
        if prompt.question == self._fail_at and max_tokens == SETTINGS.max_tokens:
            raise ConfigError("it broke")
        self._log.append((self.contender, prompt.question, max_tokens))
        self._tokens += 2 + max_tokens
        odd = self.contender.how.rounds and prompt.question != "q0"
        tokens = [*range(max_tokens - 1), 99 if odd else max_tokens - 1]
        return Answer(prompt.question, [1, 2], tokens, list(range(1, max_tokens + 1)))

    def snapshot(self) -> Status | None:
        stage = StageTimings(tokens=self._tokens, forward_ns=1000 * self._tokens)
        counts = SpeculationCounts(cycles=self._tokens)
        return Status(0, INFO, 0, 0, EngineStats(counts), CHOICE, [stage])

    def prefers(self, branch: Branch, prompt: Prompt, temperature: float) -> bool:
        self._tokens += 1000
        self.branches.append(branch)
        return prompt.question == "q1"

    def stop(self) -> None:
        self.stopped = True


class Bench:
    """A folder and everything that is started for it."""

    def __init__(self, folder: Path, groups: Sequence[Sequence[Contender]], prompts: int = 3) -> None:
        data_set = DataSet("one", [Prompt("one", f"q{i}", "text", i) for i in range(prompts)])
        self.folder = Folder(folder, SETTINGS, {"one": data_set.digest})
        self.work = Work(groups, [0.0, 1.0], [data_set], 1, SETTINGS, "0" * 40, 0.0)
        self.log: list[tuple[Contender, str, int]] = []
        self.fakes: list[Fake] = []
        self.fail_at: str | None = None
        self.meters: dict[str, Meter] = {}

    def run(self) -> None:
        def start(contender: Contender) -> Fake:
            fake = Fake(contender, self.log, self.fail_at)
            self.fakes.append(fake)
            return fake

        run(self.work, self.folder, start, lambda one: self.meters.get(one.method))

    @property
    def measured(self) -> list[tuple[str, str]]:
        """Method and question of everything that was not warm-up."""
        return [(one.method, question) for one, question, tokens in self.log if tokens == SETTINGS.max_tokens]


PAIR = [Contender("none", 2), Contender("ngram", 2)]


@pytest.fixture(autouse=True)
def plenty_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "available_host_bytes", lambda: 64 * GIB)


def test_methods_take_turns_prompt_by_prompt_and_change_places(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [PAIR])
    bench.run()
    assert bench.measured[:6] == [
        ("none", "q0"), ("ngram", "q0"), ("ngram", "q1"), ("none", "q1"), ("none", "q2"), ("ngram", "q2"),
    ]  # fmt: skip
    cells = list(bench.folder.cells())
    assert len(cells) == 4
    assert {cell.key.temperature for cell in cells} == {0.0, 1.0}
    assert all(len(cell.beside) == 1 for cell in cells)
    assert all(fake.stopped for fake in bench.fakes)


def test_each_cell_has_the_figures_of_its_own_prompts_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [PAIR])
    bench.run()
    for cell in bench.folder.cells():
        assert cell.counters is not None
        assert cell.counters.stages[0].tokens == 3 * (2 + SETTINGS.max_tokens)
        assert cell.prefill == [StageTimings(tokens=9, forward_ns=9000)]
        assert cell.prompt_frames == 3


class FakeMeter:
    """Goes up by 5 mJ from look to look."""

    def __init__(self) -> None:
        self._looks = 0

    def millijoules(self) -> int:
        self._looks += 1
        return 5 * self._looks


def test_energy_is_that_of_the_methods_own_answers(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [PAIR])
    bench.meters = {"ngram": FakeMeter()}
    bench.run()
    energy = {(cell.key.contender.method, cell.energy_mj) for cell in bench.folder.cells()}
    assert energy == {("none", None), ("ngram", 3 * 5)}


def test_the_time_left_is_known_once_both_kinds_of_work_are() -> None:
    forecast = Forecast(starts=3, answers=4)
    forecast.took("start", 20.0, 2)
    assert forecast.seconds_left is None
    forecast.took("answer", 3.0)
    assert forecast.seconds_left == 10 + 3 * 3
    forecast.took("answer", 1.0)
    assert forecast.seconds_left == 10 + 2 * 2
    nothing_to_start = Forecast(0, 2)
    nothing_to_start.took("answer", 1.0)
    assert nothing_to_start.seconds_left == 1


def test_answers_of_rounds_that_differ_are_asked_about_and_that_counts_for_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [[Contender("none", 2), Contender("dtv-ngram", 2)]])
    bench.run()
    context = [1, 2, *range(SETTINGS.max_tokens - 1)]
    expected = SETTINGS.max_tokens - 1
    none, rounds = bench.fakes
    assert none.branches == []
    assert rounds.branches == 2 * [Branch("q1", context, expected), Branch("q2", context, expected)]
    for cell in bench.folder.cells():
        assert cell.counters is not None
        assert cell.counters.stages[0].tokens == 3 * (2 + SETTINGS.max_tokens)
        assert cell.near_ties == (["q1"] if cell.key.contender.how.rounds else [])


def test_a_second_run_measures_only_what_is_missing(tmp_path: Path) -> None:
    first = Bench(tmp_path, [PAIR])
    first.run()
    again = Bench(tmp_path, [PAIR])
    again.run()
    assert again.fakes == []
    more = Bench(tmp_path, [[*PAIR, Contender("pdm", 2)]])
    more.run()
    assert [fake.contender.method for fake in more.fakes] == ["pdm"]
    assert len(list(more.folder.cells())) == 6


def test_a_failure_names_its_contender_and_stops_everything_but_keeps_what_is_done(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [PAIR, [Contender("none", 3)]])
    bench.run()
    broken = Bench(tmp_path, [[*PAIR, Contender("pdm", 2)]])
    broken.fail_at = "q1"
    with pytest.raises(ConfigError, match="pdm, n=2, one: it broke"):
        broken.run()
    assert all(fake.stopped for fake in broken.fakes)
    assert len(list(broken.folder.cells())) == 6


def test_what_does_not_fit_memory_together_runs_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, [PAIR])

    def available() -> int:
        running = sum(not fake.stopped for fake in bench.fakes)
        return (5 - 3 * running) * GIB

    monkeypatch.setattr(bench_run, "available_host_bytes", available)
    bench.run()
    assert [method for method, _ in bench.measured] == ["none"] * 6 + ["ngram"] * 6
    assert all(cell.beside == [] for cell in bench.folder.cells())


def test_a_folder_of_other_settings_or_prompts_is_refused(tmp_path: Path) -> None:
    Folder(tmp_path, SETTINGS, {"one": "digest"})
    Folder(tmp_path, SETTINGS, {"one": "digest"})
    with pytest.raises(ConfigError, match="max_tokens 8, not 9"):
        Folder(tmp_path, BenchSettings("tiny", 9), {"one": "digest"})
    with pytest.raises(ConfigError, match="one digest, not other"):
        Folder(tmp_path, SETTINGS, {"one": "other"})


def test_a_cell_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SETTINGS, {})
    (tmp_path / "cells" / "none-n2.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"none-n2.json.*delete it"):
        list(folder.cells())

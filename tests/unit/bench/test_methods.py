"""The comparison of methods: what is measured with which times, what the page says, and going on later."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from speculation.bench import run as bench_run
from speculation.bench.analysis.cells import Answer, Cell
from speculation.bench.configuration import LLAMA_CPP, METHODS, BenchSettings, Contender, serve_arguments
from speculation.bench.methods import sections
from speculation.bench.methods.__main__ import main
from speculation.bench.methods.entries import entries
from speculation.bench.methods.figures import figures
from speculation.bench.methods.pitfalls import Made, pitfalls
from speculation.bench.methods.times import LoneTimes, lone_times
from speculation.bench.prompts import Prompt
from speculation.training.provenance import command_line
from tests.stub_engine import CHOICE, INFO
from tests.unit.bench.bench_cells import MS, answer, cell, counters
from workers.shared.errors import ConfigError
from workers.shared.messages import EngineStats, SpeculationCounts, StageTimings, Status

MEMORY = 64 * 2**30


def measured(method: str, stages: int, gap_ms: int, accepted: int, rejected: int, cycles: int) -> Cell:
    """21 tokens, the first of which is the prefill's."""
    timings = [StageTimings(frames=21, tokens=23, forward_ns=21 * 30 * MS)] * stages
    counted = counters(accepted=accepted, rejected=rejected, cycles=cycles, stages=timings)
    return cell(method, stages, [answer("q", list(range(21)), gap_ms=gap_ms)], counted=counted, prefill=timings)


class TestEntries:
    def test_what_has_no_checkpoint_says_by_which_command_it_gets_one(self) -> None:
        found = {entry.method: entry for entry in entries({"pdm", "pdm+ngram"})}
        assert found["pdm"].missing == found["dtv-ngram"].missing == ""
        assert "echelon train MODEL --kind exit" in found["exit"].missing
        assert "--draft-model" in found["dtv-model"].missing
        assert "echelon train MODEL --kind eagle3" in found["dtv-eagle3"].missing
        assert "their own checkpoint" in found["mtp"].missing
        everything = {"pdm", "pdm+ngram", "exit", "model", "eagle3", "peagle", "mtp", "cascade"}
        assert {entry.missing for entry in entries(everything)} == {""}

    def test_every_method_that_means_something_is_on_the_page(self) -> None:
        ours = {method for method, how in METHODS.items() if how.drafter != "scripted"} - {LLAMA_CPP}
        assert {entry.method for entry in entries(())} == ours
        assert entries(())[0].method == "none"


class TestTimes:
    def test_a_token_and_a_draft_as_they_were_measured(self) -> None:
        cells = [measured("single", 1, 30, 0, 0, 20), measured("pdm", 1, 30, 10, 10, 20)]
        times = lone_times(cells)
        assert times is not None
        assert times.draft_ms == {"pdm": pytest.approx(2.0)}  # 2 ms each, by `counters`
        assert lone_times(cells[1:]) is None

    def test_all_times_are_longer_by_what_the_cores_need_and_a_share_is_taken_from_all_stages(self) -> None:
        times = LoneTimes(40.0, {"pdm": 8.0})
        own = times.emulation("pdm", 4, 2, (1.0, 1.1), shared=False)
        shared = times.emulation("pdm", 4, 2, (), shared=True)
        factor = times.slowdown(4, 2)
        assert factor == pytest.approx(4.4)
        assert own.stage_ms == pytest.approx(factor * 10)
        assert own.draft_ms == shared.draft_ms == pytest.approx(factor * 8)
        assert own.row_cost == (1.0, 1.1)
        assert shared.stage_ms == pytest.approx(factor * 12)
        assert times.emulation("ngram", 4, 2, (), shared=True).stage_ms == own.stage_ms
        assert times.slowdown(2, 64) == 1.0


def test_al_counts_tokens_to_the_first_that_was_not_drafted_right() -> None:
    """Of a stream and of rounds alike; E is below it only where a round's drafts end."""
    found = figures(
        [
            measured("none", 4, 40, 0, 0, 80),
            measured("pdm", 4, 20, 15, 5, 35),
            measured("dtv-ngram", 4, 25, 10, 5, 40),
        ]
    )
    stream, rounds = found["pdm", 4, 0.0], found["dtv-ngram", 4, 0.0]
    assert stream.tokens_a_miss == pytest.approx(20 / 5)
    assert rounds.tokens_a_miss == pytest.approx(20 / 10)
    assert pytest.approx(2.0) == rounds.E
    assert (stream.over_plain, rounds.over_plain) == (pytest.approx(2.0), pytest.approx(1.6))
    assert found["none", 4, 0.0].tokens_a_miss is None
    assert stream.draft_ms == pytest.approx(2.0)


def test_the_command_names_no_folder_of_the_machine() -> None:
    given = ["default", "--prompts", "/data/eval", "--checkpoint", "exit=/heads/exit", "--out=/tmp/out"]
    assert command_line("methods", given) == "python -m methods default --prompts eval --checkpoint exit=exit --out=out"


def test_fourteen_pitfalls_are_answered() -> None:
    lines = pitfalls(Made("command", "machine", 2, 3, 16, 4, (), (1.0, 1.1), "pruned"))
    assert [line.split(".")[0] for line in lines] == [str(number) for number in range(1, 15)]
    assert "c(2) = 1.1" in lines[9]
    assert "pruned" in lines[13]


def flags_of(arguments: Sequence[str]) -> dict[str, str]:
    return {flag: value for flag, value in pairwise(arguments) if flag.startswith("--")}


def test_methods_of_a_width_of_their_own_ignore_the_common_one() -> None:
    settings = BenchSettings("tiny", 8)
    assert "--tokens-per-frame 4" in " ".join(serve_arguments(Contender("wide-ngram", 2), settings, None))
    assert "--tokens-per-frame" not in serve_arguments(Contender("ngram", 2), settings, None)
    assert "--tree-width 4" in " ".join(serve_arguments(Contender("tree-ngram", 2), settings, None))
    others = BenchSettings("tiny", 8, num_speculative_tokens=2, several=8)
    for method, tree, width, drafts in (
        ("tree-ngram", 8, 1, 0),
        ("wide-ngram", 1, 8, 0),
        ("dtv-eagle3", 1, 1, 2),
        ("dtv-tree-eagle3", 4, 1, 2),  # of several numbers one is tried
        ("ngram", 1, 1, 0),
    ):
        said = flags_of(serve_arguments(Contender(method, 2), others, None))
        assert said.get("--tree-width", "1") == str(tree), method
        assert said.get("--tokens-per-frame", "1") == str(width), method
        assert said.get("--num-speculative-tokens", "0") == str(drafts), method
    assert METHODS["wide-ngram"].several
    assert METHODS["tree-ngram"].several
    assert not METHODS["exit"].several


class Fake:
    """Takes no time; drafts are right every other time."""

    def __init__(
        self, contender: Contender, settings: BenchSettings, log: list[tuple[Contender, BenchSettings]]
    ) -> None:
        self._stages = contender.stages
        self._drafts = contender.method not in ("none", "single")
        self._tokens = 0
        log.append((contender, settings))

    def wait_until_ready(self) -> None:
        pass

    def answer(self, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
        self._tokens += max_tokens
        return Answer(prompt.question, [1], list(range(max_tokens)), [1000 * (i + 1) for i in range(max_tokens)])

    def snapshot(self) -> Status:
        timings = StageTimings(frames=self._tokens, tokens=self._tokens, forward_ns=40 * MS * self._tokens)
        right = self._tokens // 2 if self._drafts else 0
        counts = SpeculationCounts(
            drafted=2 * right, levels=2 * right, accepted=right, rejected=right, cycles=self._tokens
        )
        stats = EngineStats(counts, drafts=2 * right, draft_ns=8 * MS * right)
        return Status(0, INFO, 0, 0, stats, CHOICE, [timings] * self._stages)

    def prefers(self, *_: object) -> bool:
        return False

    def stop(self) -> None:
        pass


class TestCommand:
    def call(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str, fail_at: str = ""
    ) -> tuple[int, list[tuple[Contender, BenchSettings]], str]:
        log: list[tuple[Contender, BenchSettings]] = []

        def start(contender: Contender, settings: BenchSettings, module: str | None, logs: Path) -> Fake:
            if contender.method == fail_at:
                raise ConfigError("it does not start")
            return Fake(contender, settings, log)

        monkeypatch.setattr(sections, "start", start)
        monkeypatch.setattr(bench_run, "available_host_bytes", lambda: MEMORY)
        prompts, page = folder / "prompts", folder / "methods.md"
        prompts.mkdir(exist_ok=True, parents=True)
        (prompts / "one.jsonl").write_text('{"question_id": 1, "turns": ["text"]}\n')
        given = ["default", "--prompts", str(prompts), "--out", str(folder / "out"), "--page", str(page)]
        status = main([*given, "--methods", "ngram,dtv-ngram,pdm,exit,single", "--stages", "4", *more])
        return status, log, page.read_text()

    def test_every_section_is_measured_and_told(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        status, log, page = self.call(monkeypatch, tmp_path)
        assert status == 0
        started = [(contender.method, contender.stages) for contender, _ in log]
        piped = ["none", "dtv-ngram", "ngram", "pdm"]
        wall = [*((method, 2) for method in piped), ("single", 1)]
        assert sorted(started[:5]) == sorted(wall)
        assert sorted(started[5:9]) == [("dtv-ngram", 1), ("ngram", 1), ("pdm", 1), ("single", 1)]
        assert sorted(started[9:13]) == sorted((method, 4) for method in piped)
        assert started[13:] == [("pdm", 4)], "what streams a network is measured on a shared device, too"
        assert {settings.engine.delta for contender, settings in log[5:9] if contender.method == "pdm"} == {1}, (
            "with one frame in flight, one stage leaves no time to draft in"
        )
        own, shared = (next(s for c, s in log[at:] if c.method == "pdm").engine.emulate for at in (9, 13))
        assert shared.stage_ms > own.stage_ms > 0
        assert own.draft_ms == shared.draft_ms > 0
        assert "| PPSD | 0 | not trained |" in page
        assert "echelon train MODEL --kind exit" in page
        assert "| SPD, one token a frame | 1 | 0.500 | 2.0" in page
        assert "## Emulated, 4 stages" in page
        assert str(tmp_path) not in page

    def test_other_numbers_are_tried_with_what_their_drafts_take(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        status, log, page = self.call(monkeypatch, tmp_path, "--sweep", "2,8", "--temperature", "0")
        assert status == 0
        before = len(self.call(monkeypatch, tmp_path / "none", "--temperature", "0")[1])
        tried = [(contender.method, contender.stages, settings) for contender, settings in log[before:]]
        assert [(method, stages) for method, stages, _ in tried] == 2 * [("none", 4), ("dtv-ngram", 4)]
        assert [settings.num_speculative_tokens for _, _, settings in tried] == [2, 2, 8, 8]
        assert "| method | T | of | above | 2 | 8 |" in page
        assert "| draft-then-verify, n-gram | 0 | K | 1.00 | 1.00 | 1.00 |" in page
        assert "others, 2, 8, are below" in page
        assert self.call(monkeypatch, tmp_path, "--sweep", "2,8", "--temperature", "0")[1] == []

    def test_it_goes_on_where_it_stopped(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        status, log, page = self.call(monkeypatch, tmp_path, fail_at="dtv-ngram")
        assert status == 2
        assert "| draft-then-verify, n-gram | 0 | not run |" in page
        assert "**dtv-ngram could not be measured: it does not start**" in page
        assert ("pdm", 4) in {(contender.method, contender.stages) for contender, _ in log}, "the others are measured"
        assert self.call(monkeypatch, tmp_path)[0] == 0
        _, log, again = self.call(monkeypatch, tmp_path)
        assert log == []
        assert "| draft-then-verify, n-gram | 0 | 0.500 |" in again

    def test_a_checkpoint_may_be_added_but_not_exchanged(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert self.call(monkeypatch, tmp_path)[0] == 0
        head = tmp_path / "head"
        head.mkdir()
        (head / "model.safetensors").write_bytes(b"weights")
        more: Sequence[str] = ("--checkpoint", f"exit={head}")
        status, log, page = self.call(monkeypatch, tmp_path, *more)
        assert status == 0
        assert {contender.method for contender, _ in log} == {"exit"}
        assert "| PPSD | 0 | 0.500 |" in page
        (head / "model.safetensors").write_bytes(b"other weights")
        assert self.call(monkeypatch, tmp_path, *more)[0] == 2

"""`echelon bench` and `echelon simulate` as a user starts them, on the `tiny` model."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from speculation.bench.configuration import BenchSettings, Contender
from speculation.bench.contenders.served import Served
from speculation.bench.near_ties import Branch
from speculation.bench.prompts import Prompt
from tests.processes import children, command, wait_until

pytestmark = pytest.mark.timeout(900)

_SECONDS = 800


def echelon(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "server.cli", *arguments]


def finish(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(echelon(*arguments), capture_output=True, text=True, timeout=_SECONDS, check=False)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    lines = [{"question_id": i, "turns": [f"Question {i}: what is a pipeline, what is a pipeline?"]} for i in range(3)]
    (folder / "short.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


@pytest.fixture(scope="module")
def measured(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """A finished bench: its folder, its arguments, and the table it printed."""
    out = tmp_path_factory.mktemp("bench")
    arguments = ["bench", "tiny", "--prompts", str(prompts), "--out", str(out), "--limit", "2", "--max-tokens", "24"]
    arguments += ["--methods", "none,dtv-ngram,hf", "--temperature", "0,1"]
    done = finish(*arguments)
    assert done.returncode == 0, done.stderr
    return out, arguments, done.stdout


def results(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "results.json").read_text())
    return content


def test_every_method_gives_the_same_tokens_and_a_row_of_figures(measured: tuple[Path, list[str], str]) -> None:
    out, _, table = measured
    rows = {(row["method"], row["temperature"]): row for row in results(out)["rows"]}
    assert set(rows) == {(method, temperature) for method in ("none", "dtv-ngram", "hf") for temperature in (0, 1)}
    for row in rows.values():
        assert row["error"] is None
        assert row["prompts"] == 2
        assert row["tokens_per_second"] > 0
        assert row["interleaved"]
        assert (row["joules_per_token"], row["tokens_per_second_per_device"] > 0) == (None, True)
        if row["method"] != "hf":
            assert row["engine_tokens_per_second"] > 0
            parts = row["cycle_parts"]
            assert min(parts["forward"], parts["sample"] + parts["wait"], parts["announce"], parts["commit"]) > 0
    assert rows["none", 0]["E"] == 1
    assert rows["none", 0]["acceptance"] is None
    ngram = rows["dtv-ngram", 1]
    assert ngram["tokens_per_cycle"] >= 0.5
    assert set(ngram["hit_at"] or {"1": 0}) <= {"1", "2", "4", "8", "16"}
    assert table.count("\n| ") >= 7


def test_results_say_how_they_were_made_without_paths_of_this_machine(measured: tuple[Path, list[str], str]) -> None:
    out, _, _ = measured
    content = results(out)
    assert content["provenance"]["command"].startswith("echelon bench tiny --prompts ")
    assert str(out.parent) not in json.dumps(content)
    assert content["provenance"]["versions"]["torch"]
    assert set(content["data"]) == {"short"}


def test_a_finished_bench_is_not_measured_again(measured: tuple[Path, list[str], str]) -> None:
    out, arguments, _ = measured
    before = results(out)["rows"]
    again = finish(*arguments)
    assert again.returncode == 0, again.stderr
    assert results(out)["rows"] == before


def test_other_settings_need_another_folder(measured: tuple[Path, list[str], str]) -> None:
    _, arguments, _ = measured
    refused = finish(*arguments, "--max-tokens", "25")
    assert refused.returncode == 2
    assert "max_tokens 24, not 25" in refused.stderr


def test_an_interrupted_bench_leaves_no_process(prompts: Path, tmp_path: Path) -> None:
    arguments = ["bench", "tiny", "--prompts", str(prompts), "--out", str(tmp_path), "--methods", "none"]
    running = subprocess.Popen(echelon(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    started: set[int] = set()

    def stages_are_up() -> bool:
        launchers = children(running.pid)
        engine = [child for launcher in launchers for child in children(launcher)]
        started.update(launchers, engine)
        return any("--stage" in command(pid) for pid in engine)

    wait_until(lambda: stages_are_up() or running.poll() is not None, 300)
    assert running.poll() is None, running.communicate()
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 3
    assert b"run the same command again" in said
    wait_until(lambda: not any(command(pid) for pid in started), 60)


def test_emulated_rehearsals_are_marked(prompts: Path, tmp_path: Path) -> None:
    done = finish(
        *("bench", "tiny", "--prompts", str(prompts), "--out", str(tmp_path), "--limit", "1", "--max-tokens", "20"),
        # Longer than any machine computes, or a slow one has no time left to emulate.
        *("--methods", "scripted", "--scripted-acceptance", "1", "--stages", "3", "--emulate-stage-ms", "60"),
        *("--emulate-head-ms", "5", "--emulate-draft-ms", "2", "--emulate-link-ms", "1", "--ignore-eos"),
    )
    assert done.returncode == 0, done.stderr
    (row,) = results(tmp_path)["rows"]
    assert row["rehearsal"]
    assert row["emulated"] == {
        "stage_ms": 60,
        "head_ms": 5,
        "draft_ms": 2,
        "cascade_ms": [],
        "row_cost": [],
        "link_ms": 1,
    }
    assert row["draft_ms"] >= 2
    assert row["acceptance"] == 1
    assert row["tokens_per_cycle"] == pytest.approx(19 / 21)  # the first token fills the pipeline
    assert row["tokens_per_second"] < 1000 / 65 * 1.1
    assert all(stage["emulate"] > 0 for stage in row["stage_shares"])
    assert "scripted (rehearsal) (emulated)" in done.stdout


def test_a_nudge_tells_a_near_tie_from_another_token(tmp_path: Path) -> None:
    prompt = Prompt("one", "q", "What is a pipeline?", seed=3)
    served = Served(Contender("single", 1), BenchSettings("tiny", 8), None, tmp_path / "serve.log")
    try:
        served.wait_until_ready()
        for temperature in (0.0, 1.0):
            answer = served.answer(prompt, temperature, 8)
            context, token = answer.prompt_ids + answer.tokens[:7], answer.tokens[7]
            assert served.prefers(Branch("q", context, token), prompt, temperature)
            assert not served.prefers(Branch("q", context, token ^ 1), prompt, temperature)
    finally:
        served.stop()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "tiny", "--prompts", os.devnull, "--out", "x", "--methods", "magic"], "--methods magic"),
        (["simulate", "--box", "abacus"], "--box abacus"),
        (["simulate", "--stage-ms", "0"], "stage_ms"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str) -> None:
    refused = finish(*arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_simulate_answers_whether_it_would_help() -> None:
    done = finish("simulate", "--box", "8xh100,8x3090-x4", "--model", "8b,70b", "--tokens", "300")
    assert done.returncode == 0, done.stderr
    assert "no: tensor parallelism" in done.stdout
    assert "yes: " in done.stdout
    own = finish("simulate", "--stage-ms", "5,5,5,5,5,5,5,5", "--acceptance", "1")
    assert "| none |  | 25.0 |" in own.stdout
    assert "| pipelined, m=1 | 1 | 198" in own.stdout


def test_streams_side_by_side_are_a_table_of_their_own(prompts: Path, tmp_path: Path) -> None:
    asked = ["bench", "tiny", "--prompts", str(prompts), "--out", str(tmp_path), "--methods", "none"]
    done = finish(*asked, "--concurrency", "2,1", "--max-tokens", "8", "--ignore-eos")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "concurrency.json").read_text())["rows"]
    assert [row["streams"] for row in rows] == [1, 2]
    assert all(row["tokens_per_second"] > 0 and 0 < row["slowest"] <= 1 for row in rows)
    assert (tmp_path / "concurrency.md").read_text() == done.stdout

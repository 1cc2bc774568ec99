"""What goes into a bench: options, prompts, counters, streams; and what is wrong with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from speculation.bench.analysis.counters import Counters
from speculation.bench.configuration import BenchSettings, Contender, contenders, devices, gpus, serve_arguments
from speculation.bench.contenders.streaming import Collected
from speculation.bench.energy import open_meter
from speculation.bench.options import parse
from speculation.bench.prompts import load_data_sets
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError
from workers.shared.memory import driver_names
from workers.shared.messages import EngineStats, RankTimings, SpeculationCounts, StageTimings
from workers.shared.options.engine import DrafterOptions, EngineOptions

# --- options ---


def test_methods_of_one_device_run_once_beside_the_first_stages() -> None:
    assert contenders(("none", "hf", "ngram", "single"), (3, 5)) == [
        [Contender("none", 3), Contender("ngram", 3), Contender("hf", 1), Contender("single", 1)],
        [Contender("none", 5), Contender("ngram", 5)],
    ]
    assert contenders(("hf",), (2, 3)) == [[Contender("hf", 1)]]


def test_each_contender_becomes_a_serve_command() -> None:
    engine = EngineOptions(
        delta=1, emulate=Emulation(stage_ms=5.0, link_ms=0.5), drafter=DrafterOptions(scripted_acceptance=0.8)
    )
    settings = BenchSettings("tiny", 64, engine=engine)
    single = serve_arguments(Contender("single", 1), settings, "/module")
    assert single[single.index("--drafter") + 1] == "none"
    assert "--draft-module" not in single
    assert "/module" in serve_arguments(Contender("pdm+ngram", 3), settings, "/module")
    scripted = serve_arguments(Contender("scripted", 3), settings, None)
    for option, value in (
        ("--scripted-acceptance", "0.8"),
        ("--delta", "1"),
        ("--emulate-stage-ms", "5"),
        ("--emulate-link-ms", "0.5"),
    ):
        assert scripted[scripted.index(option) + 1] == value


def arguments_of(method: str, drafts: int = 4, **drafter: Any) -> str:
    engine = EngineOptions(delta=1, drafter=DrafterOptions(**drafter))
    settings = BenchSettings("tiny", 64, num_speculative_tokens=drafts, engine=engine)
    return " ".join(serve_arguments(Contender(method, 3), settings, None))


def test_methods_in_rounds_are_drafters_with_frames_of_several_tokens() -> None:
    for drafter in ("ngram", "model"):
        rounds = arguments_of(f"dtv-{drafter}", 5, model="small")
        assert f"--drafter {drafter} " in rounds
        assert "--num-speculative-tokens 5" in rounds
        assert "--delta" not in rounds
        assert ("--draft-model small" in rounds) == (drafter == "model")
    assert "--num-speculative-tokens" not in arguments_of("model", model="small")
    assert "--draft-model small" in arguments_of("model", model="small")


def test_only_what_chooses_may_leave_off_where_all_others_draft_always() -> None:
    assert "--always-draft" in arguments_of("pdm+ngram", always=True)
    assert "--always-draft" not in arguments_of("chosen", always=True)
    assert "--drafter pdm+ngram" in arguments_of("chosen", always=True)


@pytest.mark.parametrize(
    ("method", "device", "transport", "indices", "count"),
    [
        ("none", "cpu", "auto", (), 3),
        ("pdm", "cpu", "auto", (), 4),
        ("dtv-model", "cpu", "auto", (), 4),
        ("none", "cuda", "auto", (0, 1, 2), 3),
        ("pdm", "cuda", "auto", (0, 1, 2), 3),
        ("none", "cuda", "inprocess", (0,), 1),
        ("ngram", "cuda:4,cuda:2,cuda:1", "auto", (1, 2, 4), 3),
    ],
)
def test_devices_of_a_contender(method: str, device: str, transport: Any, indices: tuple[int, ...], count: int) -> None:
    engine = EngineOptions(device=tuple(device.split(",")), transport=transport)
    settings = BenchSettings("tiny", 64, engine=engine)
    assert gpus(Contender(method, 3), settings) == indices
    assert devices(Contender(method, 3), settings) == count


def test_one_device_is_the_first_of_a_list() -> None:
    settings = BenchSettings("tiny", 64, engine=EngineOptions(device=("cuda:2", "cuda:1")))
    assert gpus(Contender("hf", 1), settings) == gpus(Contender("single", 1), settings) == (2,)
    assert serve_arguments(Contender("single", 1), settings, None).count("cuda:2") == 1


def test_the_driver_knows_gpus_by_what_cuda_was_shown() -> None:
    assert driver_names((0, 2), None) == ["0", "2"]
    assert driver_names((0, 1), "3, GPU-abc") == ["3", "GPU-abc"]
    assert open_meter((), None) is None


def test_quick_is_a_fixed_small_subset_that_can_be_changed() -> None:
    base = ["tiny", "--prompts", "p", "--out", "o"]
    quick = parse([*base, "--quick"]).settings
    assert (quick.limit, quick.max_tokens) == (1, 32)
    assert parse([*base, "--quick", "--max-tokens", "9"]).settings.max_tokens == 9
    assert (parse(base).settings.limit, parse(base).settings.max_tokens) == (None, 256)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--methods", "none,magic"], "--methods magic"),
        (["--methods", ""], "--methods"),
        (["--stages", "2,x"], "--stages 2,x"),
        (["--stages", "0"], "--stages"),
        (["--temperature", "hot"], "--temperature hot"),
        (["--temperature", "3"], "--temperature 3"),
        (["--max-tokens", "1"], "--max-tokens"),
        (["--limit", "0"], "--limit"),
        (["--repeats", "0"], "--repeats"),
        (["--methods", "scripted"], "--scripted-acceptance"),
        (["--methods", "dtv-model"], "--draft-model"),
        (["--draft-model", "small"], "--methods model"),
        (["--num-speculative-tokens", "0"], "--num-speculative-tokens"),
        (["--emulate-head-ms", "-1"], "--emulate-head-ms"),
        (["--scripted-acceptance", "0.5"], "--methods scripted"),
        (["--methods", "pdm", "--draft-module", "no/such/module"], "--draft-module no/such/module"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["tiny", "--prompts", "p", "--out", "o", *options])
    assert named in str(caught.value)


def test_a_module_without_a_method_that_uses_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    base = ["tiny", "--prompts", "p", "--out", "o", "--draft-module", str(tmp_path)]
    with pytest.raises(ConfigError, match="--draft-module is for"):
        parse([*base, "--methods", "ngram"])
    first = parse([*base, "--methods", "pdm"]).settings.module
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert parse([*base, "--methods", "pdm"]).settings.module != first


# --- prompts ---


def write(folder: Path, name: str, *lines: object) -> None:
    (folder / name).write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))


def test_data_sets_are_read_in_order_with_a_seed_of_each_prompts_own(tmp_path: Path) -> None:
    lines = [{"question_id": i, "turns": [f"text {i}", "never used"], "category": "x"} for i in range(3)]
    write(tmp_path, "b.jsonl", *lines)
    write(tmp_path, "a.jsonl", "", *lines[:1])
    first, second = load_data_sets(tmp_path, 2, seed=7)
    assert (first.name, second.name) == ("a", "b")
    assert [prompt.text for prompt in second.prompts] == ["text 0", "text 1"]
    assert len({prompt.seed for prompt in (*first.prompts, *second.prompts)}) == 3
    assert load_data_sets(tmp_path, 2, seed=7)[1].digest == second.digest
    assert load_data_sets(tmp_path, 2, seed=8)[1].digest != second.digest


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["{"], "line 1"),
        ([{"question_id": 1}], "turns"),
        ([{"question_id": 1, "turns": []}], "line 1"),
        ([{"question_id": 1, "turns": ["a"]}, {"question_id": "1", "turns": ["b"]}], "question_id"),
        ([], "no prompts"),
    ],
)
def test_prompts_that_cannot_be_used_are_named(tmp_path: Path, lines: list[object], named: str) -> None:
    write(tmp_path, "set.jsonl", *lines)
    with pytest.raises(ConfigError, match=r"set\.jsonl") as caught:
        load_data_sets(tmp_path, None, seed=0)
    assert named in str(caught.value)


def test_a_folder_without_data_sets_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \.jsonl file"):
        load_data_sets(tmp_path, None, seed=0)


# --- counters ---


def counted(scale: int) -> Counters:
    return Counters(
        EngineStats(
            SpeculationCounts(
                *(scale * value for value in (20, 19, 10, 4, 6, 30, 1, 14, 10)), [scale * i for i in range(5)]
            ),
            full_cycles=scale * 9,
            full_cycle_ns=scale * 1_234_567,
            rank=RankTimings(scale * 11, scale * 12, scale * 13),
        ),
        [StageTimings(*(scale * (10 * stage + value) for value in range(9))) for stage in (1, 2)],
    )


def test_differences_and_sums_are_of_every_figure() -> None:
    assert counted(3).since(counted(1)) == counted(2)
    assert counted(2).plus(counted(1)) == counted(3)


def test_a_restarted_engine_is_noticed() -> None:
    with pytest.raises(ConfigError, match="restarted"):
        counted(1).since(counted(3))


# --- streams ---


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps({"choices": [], **fields}).encode() + b"\n"


def delta(*ids: int) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": "x"}, "token_ids": list(ids)}])


def test_a_stream_becomes_an_answer_with_a_time_for_every_token() -> None:
    collected = Collected("q")
    lines = [
        (event(choices=[{"delta": {"role": "assistant"}}], prompt_token_ids=[4, 5]), 5),
        (b": ping\n", 6),
        (delta(1), 10),
        (delta(2, 3), 20),
        (event(choices=[{"delta": {}, "finish_reason": "stop"}]), 21),
        (event(usage={"completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}), 22),
        (b"data: [DONE]\n", 23),
    ]
    for line, time in lines:
        collected.line(line, time)
    answer = collected.answer()
    assert (answer.prompt_ids, answer.tokens, answer.times_us) == ([4, 5], [1, 2, 3], [10, 20, 20])
    assert (answer.cached, answer.computed) == (1, 1)


def test_a_stream_that_breaks_or_miscounts_is_an_error() -> None:
    cut = Collected("q")
    cut.line(delta(1), 1)
    with pytest.raises(ConfigError, match="prompt q: the stream ended early"):
        cut.answer()
    wrong = Collected("q")
    for line in (delta(1), event(usage={"completion_tokens": 2}), b"data: [DONE]\n"):
        wrong.line(line, 1)
    with pytest.raises(ConfigError, match="usage says 2"):
        wrong.answer()
    with pytest.raises(ConfigError, match="out of memory"):
        wrong.line(event(error={"message": "out of memory"}), 2)

"""Distillation on a tiny target: what is written, and that an interrupted run repeats itself."""

from pathlib import Path

import msgspec
import pytest
from transformers import AutoTokenizer

from speculation.training import distill
from speculation.training.examples.data import load_examples, read_records
from speculation.training.examples.prompts import pre_query, read_prompts, usable_instruction
from tests.model.pdm.conftest import VOCAB
from workers.shared.errors import ConfigError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(f"question {number}" for number in range(5)) + "\n\n")
    return path


def run(target: Path, out: Path, *others: str) -> int:
    return distill.main([str(target), "--out", str(out), "--batch", "2", "--max-tokens", "12", *others])


def test_every_prompt_is_answered_at_every_temperature(target_folder: Path, prompts: Path, tmp_path: Path) -> None:
    assert run(target_folder, tmp_path / "out", "--prompts", str(prompts)) == 0
    records = list(read_records(tmp_path / "out" / "answers.jsonl"))
    assert sorted((record.prompt, record.temperature) for record in records) == [
        (f"question {number}", temperature) for number in range(5) for temperature in (0.0, 1.0)
    ]
    assert {record.source for record in records} == {"questions"}
    assert all(record.answer_ids and len(record.answer_ids) <= 12 for record in records)
    tokenizer = AutoTokenizer.from_pretrained(target_folder)
    examples = load_examples([tmp_path / "out" / "answers.jsonl"], tokenizer, VOCAB, 64, 0.0)
    assert [list(example.tokens[example.prompt_length :]) for example in examples] == [
        record.answer_ids for record in records if len(record.answer_ids or []) > 1
    ]


def test_greedy_answers_do_not_depend_on_the_batch(target_folder: Path, prompts: Path, tmp_path: Path) -> None:
    for batch in ("1", "5"):
        run(target_folder, tmp_path / batch, "--prompts", str(prompts), "--temperature", "0", "--batch", batch)
    one, five = (list(read_records(tmp_path / batch / "answers.jsonl")) for batch in ("1", "5"))
    assert [record.answer_ids for record in one] == [record.answer_ids for record in five]


def test_an_interrupted_run_writes_the_same_file(target_folder: Path, prompts: Path, tmp_path: Path) -> None:
    options = ("--prompts", str(prompts))
    assert run(target_folder, tmp_path / "whole", *options) == 0
    assert run(target_folder, tmp_path / "parts", *options, "--count", "1") == 0
    with (tmp_path / "parts" / "answers.jsonl").open("ab") as file:
        file.write(b'{"prompt": "cut off in the mid')
    assert run(target_folder, tmp_path / "parts", *options) == 0
    assert (tmp_path / "parts" / "answers.jsonl").read_bytes() == (tmp_path / "whole" / "answers.jsonl").read_bytes()


def test_other_settings_are_not_mixed(
    target_folder: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(target_folder, tmp_path, "--prompts", str(prompts), "--count", "1") == 0
    assert run(target_folder, tmp_path, "--prompts", str(prompts), "--seed", "1") == 1
    assert "other settings" in capsys.readouterr().err


class Made:
    """Stands for the generating model: gives the instructions of each batch by its label."""

    def __init__(self, batches: list[list[str]]) -> None:
        self._batches = batches

    def instructions(self, label: str) -> list[str]:
        return self._batches[int(label.split()[1]) % len(self._batches)]


def test_made_up_instructions_go_on_from_any_batch() -> None:
    writer = Made([["a"], [], ["b", "c"]])
    batches = distill.made_up(writer, 1)  # type: ignore[arg-type]
    assert [next(batches) for _ in range(4)] == [[], ["b", "c"], ["a"], []]


def test_a_model_without_instructions_is_refused() -> None:
    with pytest.raises(ConfigError, match="--prompts"):
        list(distill.made_up(Made([[]]), 0))  # type: ignore[arg-type]


def test_pre_query_ends_where_the_user_writes(target_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target_folder)
    assert pre_query(tokenizer) == "<|start|>"
    tokenizer.chat_template = "{{ messages[0]['content'] | length }}"
    with pytest.raises(ConfigError, match="chat template"):
        pre_query(tokenizer)


def test_prompt_files(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(msgspec.json.encode({"prompt": "one", "id": 3}) + b"\n" + msgspec.json.encode({"prompt": " "}))
    assert read_prompts(path) == ["one"]
    path.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(ConfigError, match=r"line 2.*prompt"):
        read_prompts(path)
    with pytest.raises(ConfigError, match="nowhere"):
        read_prompts(tmp_path / "nowhere.txt")


@pytest.mark.parametrize(
    ("text", "expected"), [("  Tell me a story.\n", "Tell me a story."), ("Hi", None), ("x" * 1001, None)]
)
def test_usable_instructions(text: str, expected: str | None) -> None:
    assert usable_instruction(text) == expected

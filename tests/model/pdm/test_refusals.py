"""What training and distilling refuse: in one line that names the flag or the file, and with nothing lost."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoTokenizer

from speculation.training import distill, train
from speculation.training.examples.data import Record, load_examples, read_records
from speculation.training.examples.prompts import read_prompts
from speculation.training.parallel import local_device
from speculation.training.settings import TrainingSettings
from tests.model.pdm.conftest import VOCAB
from tests.model.pdm.runs import arguments, run
from workers.shared.errors import ConfigError

pytestmark = pytest.mark.timeout(120)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert train.main(given) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    return error


class TestTrainingRuns:
    def test_a_refused_run_changes_no_file_and_a_finished_one_is_left_alone(
        self, target_folder: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "out"
        short = "--steps 2 --init-projections identity"
        assert run(target_folder, data_folder, out, short)
        finished = contents(out)
        other_data = tmp_path / "data"
        other_data.mkdir()
        lines = (data_folder / "answers.jsonl").read_bytes().splitlines(keepends=True)
        (other_data / "answers.jsonl").write_bytes(b"".join(lines[1:]))
        for data, options, reason in (
            (data_folder, f"{short} --clip 0.5", "other settings (clip)"),
            (other_data, short, "other settings (examples)"),
        ):
            assert reason in refused(arguments(target_folder, data, out, options), capsys)
        assert contents(out) == finished
        assert run(target_folder, data_folder, out, short)
        assert contents(out) == finished

    def test_a_module_without_a_run_is_not_written_over(
        self, target_folder: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "model.safetensors").write_bytes(b"precious")
        assert "no checkpoint.pt" in refused(arguments(target_folder, data_folder, tmp_path), capsys)
        assert contents(tmp_path) == {"model.safetensors": b"precious"}

    @pytest.mark.parametrize("content", [b"", b"just a text\n", None], ids=["empty", "text", "another archive"])
    def test_a_broken_checkpoint_is_named(
        self,
        target_folder: Path,
        data_folder: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        content: bytes | None,
    ) -> None:
        path = tmp_path / "checkpoint.pt"
        if content is None:
            torch.save({"weights": torch.zeros(2)}, path)
        else:
            path.write_bytes(content)
        error = refused(arguments(target_folder, data_folder, tmp_path), capsys)
        assert "checkpoint.pt: not a checkpoint of a training run" in error
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]

    def test_an_overflow_ends_the_run_and_keeps_the_last_save(
        self, target_folder: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = "--save-every 1 --init-projections identity --lr 1e30"
        error = refused(arguments(target_folder, data_folder, tmp_path, options), capsys)
        assert "--lr" in error
        module = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["module"]
        assert all(tensor.isfinite().all() for tensor in module.values())


class TestTrainingInput:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ("--split 4,4", "either --stages or --split"),
            ("--stages 1,2", "at least 2 stages"),
            ("--stages 99", "only 8 layers"),
            ("--init-layers 6", "names 1 layers"),
            ("--init-layers 6,8", "layers 0..7"),
            ("--init-layers 6,x", "--init-layers '6,x'"),
            ("--layer-type qwen3 --init-layers 6,7", "--layer-type target"),
            ("--anchors 0,4,9", "last may be 8"),
            ("--kind eagle3 --anchors 2,9", "from 1 to 8"),
            ("--positions 1.5", "--positions"),
            ("--data nowhere", "nowhere"),
            ("--device cuda", "--device cuda: torch finds 0"),
            ("--device gpu", "--device 'gpu'"),
            ("--held-out 1e-9", "--held-out 1e-09: none of the 24 examples"),
            ("--max-length 2", "within --max-length 2"),
        ],
    )
    def test_bad_options_end_with_one_line(
        self,
        target_folder: Path,
        data_folder: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        options: str,
        reason: str,
    ) -> None:
        if "cuda" in options and torch.cuda.is_available():
            pytest.skip("there is a CUDA device here")
        assert reason in refused(arguments(target_folder, data_folder, tmp_path / "out", options), capsys)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        "change",
        [
            {"steps": 0},
            {"batch_tokens": 0},
            {"max_length": 1},
            {"warmup": -1},
            {"layers": 0, "init_layers": ()},
            {"draft_vocab": -1},
            {"learning_rate": -1.0},
            {"learning_rate": float("nan")},
            {"head_learning_rate": 0.0},
            {"clip": float("inf")},
            {"weight_decay": -0.1},
            {"uneven": 2.0},
            {"unroll": 0},
            {"decay": 0.0},
            {"kind": "eagle3"},
            {"kind": "peagle", "stages": (), "frozen_layers": 1, "init_layers": (0, 1)},
        ],
        ids=str,
    )
    def test_settings_have_bounds(self, change: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match=r"^--"):
            msgspec.structs.replace(TrainingSettings("tiny", (0, 4), stages=(2,)), **change)

    @pytest.mark.parametrize("flag", ["--save-every 0", "--validate-every 0", "--anchors 0,,3"])
    def test_values_that_the_parser_refuses(self, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert flag.split()[0] in refused(arguments(Path("m"), Path("d"), Path("o"), flag), capsys)

    def test_a_damaged_data_file_is_named_with_its_line(self, tmp_path: Path) -> None:
        path = tmp_path / "answers.jsonl.gz"
        path.write_bytes(gzip.compress(msgspec.json.encode(Record("q", "a")) + b"\n", mtime=0)[:-6])
        with pytest.raises(ConfigError, match=r"answers.jsonl.gz, after line"):
            list(read_records(path))
        path.write_bytes(b"no gzip at all")
        with pytest.raises(ConfigError, match=r"answers.jsonl.gz, after line 0"):
            list(read_records(path))
        (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9", "answer": "a"}\n')
        with pytest.raises(ConfigError, match=r"latin.jsonl, line 1"):
            list(read_records(tmp_path / "latin.jsonl"))

    @pytest.mark.parametrize("token", [VOCAB, -1])
    def test_token_ids_of_another_vocabulary(self, target_folder: Path, tmp_path: Path, token: int) -> None:
        path = tmp_path / "answers.jsonl"
        path.write_bytes(msgspec.json.encode(Record("q", "", [65, 66, token])))
        with pytest.raises(ConfigError, match=r"answers.jsonl, line 1: token ids .* vocabulary has 259"):
            load_examples([path], AutoTokenizer.from_pretrained(target_folder), VOCAB, 64, 0.0)

    def test_a_tokenizer_without_a_template(self, target_folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "answers.jsonl"
        path.write_bytes(msgspec.json.encode(Record("q", "", [65, 66])))
        tokenizer = AutoTokenizer.from_pretrained(target_folder)
        tokenizer.chat_template = None
        with pytest.raises(ConfigError, match="chat template"):
            load_examples([path], tokenizer, VOCAB, 64, 0.0)

    def test_devices(self) -> None:
        assert local_device("cpu").type == "cpu"
        with pytest.raises(ConfigError, match="--device mps: give cpu"):
            local_device("mps")


class TestDistilling:
    def test_another_model_dtype_or_prompt_is_not_mixed_in(
        self, target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        prompts = tmp_path / "questions.txt"
        prompts.write_text("one\ntwo\n")
        out = tmp_path / "out"
        given = ["--out", str(out), "--prompts", str(prompts), "--batch", "1", "--max-tokens", "3", "--count", "1"]
        assert distill.main([str(target_folder), *given]) == 0
        written = contents(out)
        other = _finetuned(target_folder, tmp_path / "other")
        assert distill.main([str(other), *given]) == 1
        assert "other settings (model)" in capsys.readouterr().err
        assert distill.main([str(target_folder), *given, "--dtype", "bfloat16"]) == 1
        assert "other settings (dtype)" in capsys.readouterr().err
        prompts.write_text("one\nthree\n")
        assert distill.main([str(target_folder), *given]) == 1
        assert "other settings (prompts)" in capsys.readouterr().err
        assert contents(out) == written

    def test_files_that_do_not_belong_together(
        self, target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "answers.jsonl").write_text("somebody else's\n")
        assert distill.main([str(target_folder), "--out", str(tmp_path)]) == 1
        assert "no answers.state.json" in capsys.readouterr().err
        assert (tmp_path / "answers.jsonl").read_text() == "somebody else's\n"
        (tmp_path / "answers.state.json").write_text("{")
        assert distill.main([str(target_folder), "--out", str(tmp_path)]) == 1
        assert "answers.state.json" in capsys.readouterr().err

    def test_an_output_that_was_cut_off_is_not_filled_with_zeros(
        self, target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "questions.txt").write_text("one\ntwo\n")
        given = [str(target_folder), "--out", str(tmp_path), "--prompts", str(tmp_path / "questions.txt")]
        given += ["--batch", "1", "--max-tokens", "3", "--count", "1"]
        assert distill.main(given) == 0
        (tmp_path / "answers.jsonl").write_bytes(b"")
        assert distill.main(given) == 1
        assert "has less than answers.state.json says" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "flag", ["--batch 0", "--count 0", "--max-tokens 0", "--top-k -1", "--temperature -1", "--temperature nan"]
    )
    def test_values_that_the_parser_refuses(self, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert distill.main(["model", "--out", "o", *flag.split()]) == 1
        assert flag.split()[0] in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("name", "content", "reason"),
        [
            ("p.txt", b"", "no prompt in this file"),
            ("p.txt", b" \n\n", "no prompt in this file"),
            ("p.jsonl", b"", "no prompt in this file"),
            ("p.txt", b"one\ncaf\xe9\n", "line 2: .*UTF-8"),
            ("p.txt", b"PAR1\x15\x04\x15", "line 1: control characters"),
            ("p.txt", gzip.compress(b"one\n", mtime=0), "line 1: "),
            ("p.json", b'{"question": "one"}\n', "line 1: this is JSON"),
            ("p.jsonl", b'{"prompt": "caf\xe9"}\n', "line 1: "),
            ("p.jsonl", b'{"prompt": "one"}\n{"text": "two"}\n', "line 2.*prompt"),
        ],
    )
    def test_prompt_files(self, tmp_path: Path, name: str, content: bytes, reason: str) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=reason):
            read_prompts(tmp_path / name)


def _finetuned(folder: Path, to: Path) -> Path:
    """The same model with one weight changed."""
    from safetensors.torch import load_file, save_file

    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    tensors = load_file(to / "model.safetensors")
    save_file({name: tensor + 0.01 for name, tensor in tensors.items()}, to / "model.safetensors", {"format": "pt"})
    assert json.loads((to / "config.json").read_bytes()) == json.loads((folder / "config.json").read_bytes())
    return to

"""The training command line, end to end on a tiny target: it learns, resumes exactly and refuses bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from speculation.decisions.features import FeatureMap, MaskRule, RowRule
from speculation.pdm.checkpoint import load_module
from speculation.pdm.runtime import DraftRuntime
from speculation.pdm.target import read_head, read_tensor
from speculation.training.examples.data import data_files, load_examples
from speculation.training.examples.draws import build_chain
from speculation.training.examples.layout import PackedRows
from speculation.training.loss import DraftLoss
from speculation.training.settings import TrainingSettings, rate_factor
from speculation.training.teacher import LiveTeacher, Targets, load_target
from speculation.training.teacher_cache import CachedTeacher
from tests.model.pdm.conftest import END, VOCAB
from tests.model.pdm.modules import random_anchors, random_module
from tests.model.pdm.runs import run
from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import EMBEDDING

pytestmark = pytest.mark.timeout(120)

EXIT = "--kind exit --anchors 0,2,4 --stages 2,4"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    return dict(content["module"])


def curve(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


class TestRun:
    @pytest.mark.parametrize(
        "options",
        [
            "--validate-every 5 --tokens-per-frame 1,2,4",
            "--cache CACHE --autocast --head target",
            f"{EXIT} --layers 1 --validate-every 5",
            f"{EXIT} --layers 0 --cache CACHE",
        ],
    )
    def test_a_resumed_run_is_the_same_to_the_last_bit(
        self, target_folder: Path, data_folder: Path, tmp_path: Path, options: str
    ) -> None:
        """Also one that was killed: what it did after its last save is done again, and told once."""
        options = options.replace("CACHE", str(tmp_path / "cache"))
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        assert run(target_folder, data_folder, whole, options)
        assert not run(target_folder, data_folder, parts, options, steps=3)
        saved = (parts / "checkpoint.pt").read_bytes()
        assert not run(target_folder, data_folder, parts, options, steps=3)
        (parts / "checkpoint.pt").write_bytes(saved)
        with (parts / "curve.jsonl").open("ab") as file:
            file.write(b'{"step": 5, "tra')
        assert run(target_folder, data_folder, parts, options)
        assert all(torch.equal(weights(whole)[name], tensor) for name, tensor in weights(parts).items())
        curves = [
            [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
            for folder in (whole, parts)
        ]
        validations = [[entry for entry in curve if "validation" in entry] for curve in curves]
        assert validations[0] == validations[1] != []

    def test_a_curve_without_a_checkpoint_is_begun_anew(
        self, target_folder: Path, data_folder: Path, tmp_path: Path
    ) -> None:
        """A run that was killed before its first save has told of steps that nobody else took."""
        (tmp_path / "curve.jsonl").write_text('{"step": 10, "train": {}}\n')
        run(target_folder, data_folder, tmp_path, steps=1)
        assert (tmp_path / "curve.jsonl").read_text() == ""

    def test_it_learns_and_leaves_a_module_with_its_provenance(
        self, target_folder: Path, data_folder: Path, tmp_path: Path
    ) -> None:
        assert run(
            target_folder, data_folder, tmp_path / "out", "--steps 40 --lr 1e-2 --validate-every 20 --draft-vocab 200"
        )
        curve = [json.loads(line) for line in (tmp_path / "out" / "curve.jsonl").read_text().splitlines()]
        losses = [entry["train"]["loss"] for entry in curve if "train" in entry]
        assert losses[-1] < 0.8 * losses[0], losses
        assert [entry["step"] for entry in curve if "validation" in entry] == [20, 40]
        module = load_module(tmp_path / "out", target_folder, "tiny")
        assert module.config.stages == (2, 3, 4)
        assert END in module.draft_to_target
        assert len(module.draft_to_target) <= 200
        provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
        assert provenance["target"] == "tiny"
        assert str(tmp_path) not in json.dumps(provenance)
        assert provenance["data"].keys() == {"answers.jsonl"}

    def test_a_module_is_trained_on_in_wider_frames(
        self, target_folder: Path, data_folder: Path, tmp_path: Path
    ) -> None:
        """It begins as what it starts from, and no other module is taken for it."""
        assert run(target_folder, data_folder, tmp_path / "first", "--steps 10 --lr 1e-2")
        options = f"--start {tmp_path / 'first'} --tokens-per-frame 1,3 --steps 1 --lr 1e-12 --validate-every 1"
        assert run(target_folder, data_folder, tmp_path / "second", options)
        first, second = (load_module(tmp_path / name, target_folder, "tiny") for name in ("first", "second"))
        for name, tensor in first.state_dict().items():
            assert torch.equal(tensor, second.state_dict()[name]), name
        (last,) = [entry["validation"] for entry in curve(tmp_path / "second") if "validation" in entry]
        assert {name.split()[1] for name in last if name.startswith("n2")} == {"k1", "k2", "m3"}
        settings = json.loads((tmp_path / "second" / "settings.json").read_text())
        assert settings["start"] == json.loads((tmp_path / "first" / "config.json").read_text())["sha256"]
        with pytest.raises(ConfigError, match="another layers"):
            run(target_folder, data_folder, tmp_path / "third", f"--start {tmp_path / 'first'} --layers 3")
        with pytest.raises(ConfigError, match="is not for --kind eagle3"):
            run(
                target_folder,
                data_folder,
                tmp_path / "third",
                f"--kind eagle3 --anchors 2,4,6 --start {tmp_path / 'first'}",
            )

    @pytest.mark.parametrize("layers", [0, 1])
    def test_an_exit_head_learns_and_drafts(
        self, target_folder: Path, data_folder: Path, tmp_path: Path, layers: int
    ) -> None:
        options = f"{EXIT} --layers {layers} --steps 40 --lr 1e-2 --validate-every 20"
        assert run(target_folder, data_folder, tmp_path, options)
        losses = [entry["train"]["loss"] for entry in curve(tmp_path) if "train" in entry]
        assert losses[-1] < (0.8 if layers else 0.95) * losses[0], losses  # without a layer the fit is nearly all
        (last,) = [
            entry["validation"] for entry in curve(tmp_path) if entry.get("step") == 40 and "validation" in entry
        ]
        assert {name.split(" ")[0] for name in last} == {"n2", "n4"}
        assert all(" k1 " in name for name in last), "how full the pipeline is is all the same to an exit head"
        head = load_module(tmp_path, target_folder, "tiny")
        assert (head.config.rows, head.config.layers) == (RowRule.EXIT, layers)
        runtime = DraftRuntime(head.eval(), (4, 4), 10)
        with torch.inference_mode():
            runtime.extend(random_anchors(head, 5))
            logits = runtime.draft(runtime.plan(5, 5), random_anchors(head, 1))
        assert logits.isfinite().all()

    def test_an_exit_beyond_stage_0_is_refused(self, target_folder: Path, data_folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="exit head's exits are behind 4"):
            run(target_folder, data_folder, tmp_path, "--kind exit --anchors 0,4 --stages 2,7 --layers 1")
        assert not any(tmp_path.iterdir())


class TestTeacher:
    def test_the_cache_answers_like_the_target(self, target_folder: Path, data_folder: Path, tmp_path: Path) -> None:
        live, examples = _teacher(target_folder, data_folder)
        embedding = read_tensor(target_folder, EMBEDDING).float()
        CachedTeacher(tmp_path, "print", examples, 3, embedding).build(live)
        cached = CachedTeacher(tmp_path, "print", examples, 3, embedding)
        assert cached.complete
        one, other = live.targets([5, 2]), cached.targets([5, 2])
        assert torch.equal(one.best, other.best)
        assert torch.allclose(one.log_z, other.log_z, atol=1e-5)
        assert torch.equal(one.anchors[:, 0], other.anchors[:, 0])
        assert torch.allclose(one.anchors, other.anchors, rtol=0.01, atol=1e-3)
        with pytest.raises(ConfigError, match="another target, data set"):
            CachedTeacher(tmp_path, "other print", examples, 3, embedding)

    def test_an_interrupted_cache_goes_on(self, target_folder: Path, data_folder: Path, tmp_path: Path) -> None:
        live, examples = _teacher(target_folder, data_folder)
        embedding = read_tensor(target_folder, EMBEDDING).float()

        class Interrupted:
            calls = 0

            def targets(self, indices: range) -> Targets:
                self.calls += 1
                if self.calls == 2:
                    raise KeyboardInterrupt
                return live.targets(indices)

        with pytest.raises(KeyboardInterrupt):
            CachedTeacher(tmp_path, "print", examples, 3, embedding).build(Interrupted())
        cache = CachedTeacher(tmp_path, "print", examples, 3, embedding)
        assert not cache.complete
        cache.build(live)
        last = len(examples) - 1
        assert torch.equal(cache.targets([0, last]).best, live.targets([0, last]).best)

    def test_anchors_are_before_the_final_norm(
        self, target_folder: Path, target_model: torch.nn.Module, data_folder: Path
    ) -> None:
        live, examples = _teacher(target_folder, data_folder)
        targets = live.targets([0, 3])
        with torch.no_grad():
            output = target_model(torch.tensor([examples[3].tokens]), output_hidden_states=True)
        rows = slice(len(examples[0]), None)
        for place, anchor in enumerate((0, 3)):
            assert torch.allclose(targets.anchors[rows, place], output.hidden_states[anchor][0], atol=1e-5)
        # The library's last hidden state is normed; the anchor is not.
        normed = target_model.model.norm(targets.anchors[rows, 2])
        assert torch.allclose(normed, output.hidden_states[8][0], atol=1e-5)
        assert torch.allclose(targets.normed[rows], output.hidden_states[8][0], atol=1e-5)
        assert torch.allclose(targets.log_z[rows], output.logits[0].logsumexp(-1), atol=1e-4)
        assert torch.equal(targets.best[rows], output.logits[0].argmax(-1))


def _teacher(target: Path, data: Path):  # type: ignore[no-untyped-def]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    examples = load_examples(data_files(data), tokenizer, VOCAB, 64, 0.2)
    return LiveTeacher(load_target(target, torch.float32, "cpu"), (0, 3, 8), examples), examples


class TestLoss:
    def test_blocks_add_up_to_the_gradient_of_the_mean(
        self, target_folder: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module, loss, targets, packed = _loss_of(target_folder, data_folder)
        hidden = packed.forward(module, random_anchors(module, len(targets.best)))
        total, _ = loss.rows(module.logits(hidden), targets, packed.newest, module.draft_to_target)
        torch.autograd.backward(total / len(hidden))
        expected = {
            name: parameter.grad.clone() for name, parameter in module.named_parameters() if parameter.grad is not None
        }
        module.zero_grad()
        monkeypatch.setattr("speculation.training.loss._ROWS", 3)
        hidden = packed.forward(module, random_anchors(module, len(targets.best)))
        loss.backward(module, hidden, targets, packed.newest)
        for name, gradient in expected.items():
            assert torch.allclose(dict(module.named_parameters())[name].grad, gradient, atol=1e-6), name

    def test_against_full_distributions(self, target_folder: Path, data_folder: Path) -> None:
        module, loss, targets, packed = _loss_of(target_folder, data_folder)
        with torch.no_grad():
            hidden = packed.forward(module, random_anchors(module, len(targets.best)))
            score = loss.score(module, hidden, targets, packed.newest)
            full = (targets.normed[packed.newest] @ read_head(target_folder).T).softmax(-1)
            q = torch.zeros_like(full)
            q[:, module.draft_to_target] = module.logits(hidden).softmax(-1)
        mass = full[:, module.draft_to_target].sum(-1)
        inside = full[:, module.draft_to_target]
        divergence = (inside * (inside / mass[:, None] / q[:, module.draft_to_target]).log()).sum()
        assert score.loss == pytest.approx(divergence.item(), rel=1e-4)
        assert score.overlap == pytest.approx(torch.minimum(full, q).sum().item(), rel=1e-4)
        assert score.agreement == (full.argmax(-1) == q.argmax(-1)).sum().item()


def _loss_of(target: Path, data: Path):  # type: ignore[no-untyped-def]
    from speculation.pdm.target import read_target_config

    live, _ = _teacher(target, data)
    targets = live.targets([0])
    module = random_module(read_target_config(target), draft_token_ids=tuple(range(60, 120)))
    features = FeatureMap(module.config.anchors, (3, 5))
    last = len(targets.best) - 1
    packed = PackedRows([[build_chain(features, last - back, 2) for back in range(8)]], [0], "cpu")
    return module, DraftLoss(read_head(target), module.draft_to_target), targets, packed


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "exit", "tokens_per_frame": (1, 2)},
        {"mask": MaskRule.AUTHORS, "tokens_per_frame": (2,)},
        {"tokens_per_frame": (0, 2)},
        {"tokens_per_frame": ()},
    ],
    ids=str,
)
def test_widths_that_cannot_be_trained_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--tokens-per-frame"):
        TrainingSettings("tiny", (0, 4), stages=(2,), **options)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_learning_rate_rises_then_falls(schedule: str) -> None:
    settings = TrainingSettings("tiny", (0, 4), stages=(2,), steps=100, warmup=10, schedule=schedule)  # type: ignore[arg-type]
    factors = [rate_factor(settings, step) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert 0 < factors[99] < 0.02

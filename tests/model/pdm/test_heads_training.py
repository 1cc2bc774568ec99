"""Heads in training: a step computes what a round drafts, and the command line trains, resumes and saves them."""

import json
from pathlib import Path

import pytest
import torch

from speculation.heads.checkpoint import load_head
from speculation.heads.runtime import HeadRuntime
from speculation.training.examples.data import Example
from speculation.training.kinds.heads import HeadLearner
from speculation.training.settings import TrainingSettings
from speculation.training.teacher import LiveTeacher, load_target
from tests.model.pdm.runs import run

pytestmark = pytest.mark.timeout(120)

UNROLL = 3
KINDS = {"eagle3": "--layers 1", "peagle": "--layers 2"}


def learner(folder: Path, kind: str, examples: list[Example]) -> HeadLearner:
    settings = TrainingSettings(
        "tiny",
        (2, 4, 5),
        kind=kind,
        layers=2 if kind == "peagle" else 1,
        unroll=UNROLL,
        init_projections="normal",  # type: ignore[arg-type]
    )
    made = HeadLearner(settings, folder, examples, torch.device("cpu"), parallel=kind == "peagle")
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.requires_grad and parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_training_equals_inference(target_folder: Path, kind: str) -> None:
    examples = [Example(tuple(range(40, 52)), 4, 0.0, False), Example(tuple(range(90, 97)), 1, 0.0, False)]
    made = learner(target_folder, kind, examples)
    head = made.network
    teacher = LiveTeacher(load_target(target_folder, torch.float32, "cpu"), made.states, examples)
    targets = teacher.targets([0, 1])
    steps = list(made._unroll([0, 1], targets))
    assert len(steps) == UNROLL
    compared = 0
    for step, (outputs, newest) in enumerate(steps):
        for output, at in zip(outputs, newest.tolist(), strict=True):
            index, offset = (0, 0) if at < 12 else (1, 12)
            tokens, base = examples[index].tokens, at - offset - 1 - step
            states = targets.anchors[offset : offset + base + 1, 1 : 1 + len(head.anchors)]
            runtime = HeadRuntime(head, 20)
            drafted = runtime.run(0, tokens[1 : base + 2], head.features(states))[-1:]
            if step and kind == "peagle":
                mask = [head.config.mask_token_id or 0] * step
                drafted = runtime.run(base + 1, mask, head.masked_feature().expand(step, -1))[-1:]
            elif step:
                for place in range(1, step + 1):
                    drafted = runtime.run(base + place, [tokens[base + 1 + place]], head.fed_back(drafted))
            assert (drafted[0] - output).abs().max() <= 1e-4 * output.abs().max(), (step, at)
            compared += 1
    # Positions after the prompt's first answer token, less one at the end of each example a step.
    assert compared == sum(len(e.newest) - step for e in examples for step in range(UNROLL))


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_and_is_read_back(target_folder: Path, data_folder: Path, tmp_path: Path, kind: str) -> None:
    options = f"--kind {kind} {KINDS[kind]} --anchors 2,4,5 --steps 40 --lr 1e-2 --validate-every 20"
    assert run(target_folder, data_folder, tmp_path, f"{options} --draft-vocab 200 --head target")
    entries = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    losses = [entry["train"]["loss"] for entry in entries if "train" in entry]
    assert losses[-1] < 0.9 * losses[0], losses
    last = next(entry["validation"] for entry in reversed(entries) if "validation" in entry)
    assert {name.split(" ")[0] for name in last} == {"d1", "d2", "d3", "d4"}
    loaded = load_head(tmp_path, target_folder, kind)  # type: ignore[arg-type]
    assert loaded.network.config.features == (2, 4, 5)
    assert loaded.network.config.draft_vocab_size <= 200
    with torch.inference_mode():
        states = torch.randn(3, 3, 32)
        outputs = HeadRuntime(loaded.network, 8).run(0, [65, 66, 67], loaded.network.features(states))
        assert loaded.network.logits(outputs).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_same_to_the_last_bit(
    target_folder: Path, data_folder: Path, tmp_path: Path, kind: str
) -> None:
    options = f"--kind {kind} {KINDS[kind]} --anchors 2,4,5"
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(target_folder, data_folder, whole, options)
    assert not run(target_folder, data_folder, parts, options, steps=3)
    assert run(target_folder, data_folder, parts, options)
    one, other = (torch.load(each / "checkpoint.pt", weights_only=True)["module"] for each in (whole, parts))
    assert all(torch.equal(other[name], tensor) for name, tensor in one.items())

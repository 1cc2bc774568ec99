"""Of several readings the one is taken that the target agrees with."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from speculation.heads.checkpoint import load_head
from speculation.heads.passages import groups, read_passages
from speculation.heads.readings import SeenText, agreement, anchors_of, try_readings
from speculation.heads.settle import settled
from tests.model.heads.made import EAGLE3, PEAGLE, VARIANTS, random_head, write_specforge
from tests.model.heads.reference import Reference
from workers.model.reference import load_reference
from workers.prepare.tiny_model import HIDDEN, LAYERS, VOCABULARY

CPU = torch.device("cpu")
LENGTH = 24


@torch.inference_mode()
def test_every_reading_is_found_where_it_is_the_one_that_is_meant(tiny_model: Path, tmp_path: Path) -> None:
    """What the target would have written is here what the head drafts, second drafts where first ones are the same."""
    head = random_head(replace(EAGLE3, features=(3, 9, 14)))
    folder = write_specforge(head, tmp_path, norm_output=True, norm_before_residual=None)
    loaded = load_head(folder, tiny_model, "eagle3")
    readings = loaded.readings
    anchors = anchors_of(readings)
    assert anchors == (2, 3, 8, 9, 13, 14)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(LENGTH, len(anchors), HIDDEN, generator=generator)
    tokens = torch.randint(VOCABULARY, (LENGTH,), generator=generator).tolist()
    for meant in (readings.declared, *readings.others):
        reference = Reference(meant, dict(loaded.network.state_dict()), loaded.network.draft_to_target.tolist())
        own = states[:, [anchors.index(index) for index in meant.features]]
        best = [0] * LENGTH
        for position in range(3, LENGTH):
            if position % 2:
                logits = reference.chain(tokens[: position + 1], own[:position], [])
            else:
                logits = reference.chain(tokens[:position], own[: position - 1], tokens[position : position + 1])
            best[position] = reference.draft_ids[int(logits.argmax())]
        passage = SeenText(tokens, states, torch.tensor(best))
        tried = try_readings(loaded.network, readings, [passage])
        assert tried[0].reading == meant
        assert tried[0].agreement.total > tried[1].agreement.total


@pytest.mark.parametrize("config", [VARIANTS["plain"], VARIANTS["3.1"], VARIANTS["qwen3"], PEAGLE])
@torch.inference_mode()
def test_second_drafts_of_a_whole_text_are_those_of_chains(config, tiny_model: Path) -> None:  # type: ignore[no-untyped-def]
    head = random_head(config)
    reference = Reference(config, dict(head.state_dict()), head.draft_to_target.tolist())
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(9, len(head.anchors), HIDDEN, generator=generator)
    tokens = torch.randint(VOCABULARY, (9,), generator=generator).tolist()
    own = states[:, [head.anchors.index(index) for index in config.features]]
    firsts = [reference.chain(tokens[: at + 1], own[:at], []) for at in range(1, 9)]
    seconds = [reference.chain(tokens[:at], own[: at - 1], tokens[at : at + 1]) for at in range(2, 9)]
    as_first = torch.tensor([0, *(reference.draft_ids[int(logits.argmax())] for logits in firsts)])
    as_second = torch.tensor([0, 0, *(reference.draft_ids[int(logits.argmax())] for logits in seconds)])
    assert agreement(head, [SeenText(tokens, states, as_first)]).first == 1.0
    assert agreement(head, [SeenText(tokens, states, as_second)]).second == 1.0


@torch.inference_mode()
def test_passages_are_what_the_target_sees_and_says(tiny_model: Path) -> None:
    told: list[tuple[int, int]] = []
    passages = read_passages(tiny_model, (2, 9, LAYERS), torch.float32, CPU, lambda *done: told.append(done))
    whole = load_reference(tiny_model, torch.float32)
    assert told[-1][0] == told[-1][1] > 0
    assert len(passages) == 3
    for passage in passages:
        assert len(passage.tokens) > 40
        said = whole(torch.tensor([list(passage.tokens)]), output_hidden_states=True)
        for column, index in enumerate((2, 9)):
            torch.testing.assert_close(passage.states[:, column], said.hidden_states[index][0], atol=1e-4, rtol=1e-4)
        assert (passage.best == said.logits[0].argmax(-1)).float().mean() > 0.95


def test_what_was_found_is_kept_for_the_next_start(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    folder = write_specforge(random_head(EAGLE3), tmp_path / "head", norm_before_residual=None)
    loaded = load_head(folder, tiny_model, "eagle3")
    first = settled(loaded, folder, tiny_model, torch.float32, CPU)
    assert "is it for this model?" in capfd.readouterr().err
    monkeypatch.setattr("speculation.heads.settle.read_passages", None)
    again = settled(loaded, folder, tiny_model, torch.float32, CPU)
    assert again.config == first.config
    said = capfd.readouterr().err
    assert "its files do not say which hidden states its list of layers means and norm_before_residual" in said


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 20))
def test_groups_are_all_layers_in_order(sizes: list[int], most: int) -> None:
    found = list(groups(sizes, most))
    assert [layer for group in found for layer in group] == list(range(len(sizes)))
    assert all(len(group) == 1 or sum(sizes[layer] for layer in group) <= most for group in found)

"""Hollow stages: the schedule runs as with a model, and the answer is marked as one that means nothing."""

from pathlib import Path

import pytest

from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from tests.harness import local_engine
from workers.shared.emulation import Emulation


@pytest.mark.timeout(60)
def test_frames_cross_every_stage_and_nothing_is_computed(tiny_model: Path) -> None:
    with local_engine(tiny_model, (8, 8), hollow_stages=True, emulate=Emulation(stage_ms=2.0)) as engine:
        prompt = [5] * 300
        engine.drafting.use(ScriptedDrafter(Script([Recording([*prompt, *[0] * 20])]), engine.vocab_size))
        result = engine.client.generate(prompt, 20)
        status = engine.client.status()
    assert result.tokens == [0] * 20  # all logits are equal
    assert result.counts is not None
    assert result.counts.rejected == 0
    assert 0 < result.counts.accepted <= 18  # a sample may be faster than the draft
    assert status.info.rehearsal
    assert [stage.frames for stage in status.stages] == [22, 22]  # three prompt chunks, and 19 tokens

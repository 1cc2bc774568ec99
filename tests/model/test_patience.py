"""An engine is patient with long frames, and not with lost ones."""

from pathlib import Path

import pytest

from tests.harness import local_engine
from workers.shared.emulation import Emulation
from workers.shared.messages import FromStage, Sample
from workers.stage.loop import ControlChannel


def test_a_frame_may_take_longer_than_a_stage_may_be_silent(tiny_model: Path) -> None:
    slow = Emulation(stage_ms=1200)
    with local_engine(tiny_model, (8, 8), max_model_len=64, stall_timeout=0.5, emulate=slow) as engine:
        assert len(engine.client.generate([40] * 20, 2).tokens) == 2


def test_a_lost_sample_is_noticed_though_all_loops_turn(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ControlChannel.report
    samples: list[Sample] = []

    def lossy(channel: ControlChannel, message: FromStage) -> None:
        if isinstance(message, Sample):
            samples.append(message)
            if len(samples) == 5:
                return
        report(channel, message)

    monkeypatch.setattr(ControlChannel, "report", lossy)
    engine = local_engine(tiny_model, (8, 8), max_model_len=64, stall_timeout=1.0)
    running = engine.__enter__()
    running.client.send([40] * 20, 20)
    running.thread.join(60)
    with pytest.raises(AssertionError, match="a request runs, but nothing heard of frame"):
        engine.__exit__(None, None, None)

"""An engine is patient with long frames, and not with lost ones."""

import threading
from pathlib import Path

import pytest
from llguidance import LLMatcher

from tests.harness import local_engine
from workers.shared.emulation import Emulation
from workers.shared.grammar import Grammars
from workers.shared.messages import FromStage, Sample, Sampling
from workers.stage.channel import ZmqChannel


def test_a_frame_may_take_longer_than_a_stage_may_be_silent(tiny_model: Path) -> None:
    slow = Emulation(stage_ms=1200)
    with local_engine(tiny_model, (8, 8), max_model_len=64, stall_timeout=0.5, emulate=slow) as engine:
        assert len(engine.client.generate([40] * 20, 2).tokens) == 2


def test_others_are_served_while_a_grammar_is_compiled(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_, begun, go = Grammars._compile, threading.Event(), threading.Event()

    def slow(grammars: Grammars, grammar: str) -> LLMatcher:
        begun.set()
        assert go.wait(60)
        return compile_(grammars, grammar)

    monkeypatch.setattr(Grammars, "_compile", slow)
    with local_engine(tiny_model, (8, 8), max_model_len=64, stall_timeout=1.0) as engine:
        restricted = Sampling(seed=0, grammar="start: /[ab]{4}/")
        asked = engine.client.send([40, 41], 10, restricted)
        given_up = engine.client.send([40, 41], 10, restricted)
        assert begun.wait(60)
        assert len(engine.client.generate([40, 41], 10).tokens) == 10
        assert engine.client.status().waiting == 2
        engine.client.abort(given_up)
        assert engine.client.result(given_up).finish == "abort"
        go.set()
        assert engine.client.result(asked).error is None


def test_a_lost_sample_is_noticed_though_all_loops_turn(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ZmqChannel.report
    samples: list[Sample] = []

    def lossy(channel: ZmqChannel, message: FromStage) -> None:
        if isinstance(message, Sample):
            samples.append(message)
            if len(samples) == 5:
                return
        report(channel, message)

    monkeypatch.setattr(ZmqChannel, "report", lossy)
    engine = local_engine(tiny_model, (8, 8), max_model_len=64, stall_timeout=1.0)
    running = engine.__enter__()
    running.client.send([40] * 20, 20)
    running.thread.join(60)
    with pytest.raises(AssertionError, match="a request runs, but nothing heard of frame"):
        engine.__exit__(None, None, None)

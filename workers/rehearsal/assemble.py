"""Puts the stand-ins that a configuration asks for around the real parts of a stage. Nowhere else are they known."""

from pathlib import Path

from workers.decisions.made_up import MadeUpText
from workers.rehearsal.by_chance import TailByChance
from workers.rehearsal.delayed import DelayedOutbound
from workers.rehearsal.paced import Pace, PacedLayers, PacedTail
from workers.shared.config import EngineConfig
from workers.shared.messages import StageTimings
from workers.shared.model_files.facts import read_facts
from workers.stage.parts import StageParts


def rehearsed(parts: StageParts, config: EngineConfig, timings: StageTimings) -> StageParts:
    """`parts` as they are, or wrapped; time passed asleep is counted in `timings` as emulated."""
    layers, outbound, tail = parts.layers, parts.outbound, parts.tail
    if config.emulate.link_ms and outbound is not None:
        outbound = DelayedOutbound(outbound, config.emulate.link_ms)
    stage_ms = config.emulate.of_stage(last=tail is not None)
    if stage_ms:
        pace = Pace(stage_ms, config.emulate.of_rows)
        layers = PacedLayers(layers, pace, timings, sleeps=tail is None)
        tail = PacedTail(tail, pace, timings) if tail is not None else None
    acceptance = config.drafter.scripted_acceptance
    if acceptance is not None and tail is not None:
        vocab_size = read_facts(Path(config.model)).vocab_size
        tail = TailByChance(tail, MadeUpText(vocab_size, acceptance, config.drafter.scripted_rescue))
    return StageParts(layers, parts.channel, parts.inbound, outbound, tail, parts.compiler)

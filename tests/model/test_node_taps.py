"""Hidden states of drafts that branch: whatever comes when, the text's are in their positions, and no other's."""

import random
from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.decisions.drafts.steps import Step
from speculation.decisions.policy import pipelined
from speculation.node_taps import NodeTaps
from speculation.taps import TapBuffer
from tests.unit.speculation.pipeline_sim import PipelineSim, Request, plain
from workers.shared.frames import Frame
from workers.shared.messages import Sample, Tap

PROMPT = [1, 2, 3, 4, 5]
NEW = 30


def state(text: list[int], stage: int) -> float:
    """What a stage makes of the last token of a text."""
    return float(sum(token * (place + 1) for place, token in enumerate(text)) + 100_000 * stage)


class TappedSim(PipelineSim):
    """Stages send hidden states, which arrive whenever they arrive."""

    def __init__(self, stages: int, breadth: int, width: int, seed: int) -> None:
        policy = pipelined(stages, 0, width, breadth)
        super().__init__(stages, policy, 3, acceptance=0.8, rng=random.Random(seed), jitter=0.9, control=0.5)
        columns = {stage: [stage] for stage in range(stages)}
        self.taps = TapBuffer(columns, (len(PROMPT) + NEW, stages, 1), torch.float32, "cpu")
        self.nodes = NodeTaps(self.taps)
        cut = self.schedule.cut

        def noted() -> Frame:
            frame = cut()
            if self.schedule.sent:
                self.nodes.sent(frame.index, self.schedule.sent)
            return frame

        self.schedule.cut = noted  # type: ignore[method-assign]

    def compute(self, stage: int, frame: Frame, first: int | None) -> Sample | None:
        sample = super().compute(stage, frame, first)
        rows = [state(self._rows[stage].text(frame, row), stage) for row in range(len(frame.tokens))]
        data = torch.tensor(rows).view(torch.uint8).numpy().tobytes()
        tap = Tap(stage, 0, frame.epoch, frame.position, "float32", data, frame.index)
        self.send("taps", stage, partial(self.nodes.store, tap))
        return sample

    def _apply(self, step: Step) -> None:
        for node, _ in step.right:
            self.nodes.chosen(node)
        if step.rejected:
            self.taps.ledger.rejected(self.schedule.verified - 1, self.schedule.epoch)
            self.nodes.clear(request=False)
        super()._apply(step)


@settings(max_examples=60, deadline=None)
@given(stages=st.integers(1, 5), breadth=st.integers(2, 4), width=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_positions_hold_what_stages_made_of_the_text(stages: int, breadth: int, width: int, seed: int) -> None:
    sim = TappedSim(stages, breadth, width, seed)
    (outcome,) = sim.run([Request(PROMPT, NEW)])
    text = PROMPT + plain(PROMPT, NEW)
    assert PROMPT + outcome.tokens == text
    filled = sim.taps.filled()
    assert filled >= len(text) - (stages + 2) * width, "the last frames die with the request, and no others"
    for position in range(filled):
        for stage in range(stages):
            assert float(sim.taps.states[position, stage]) == state(text[: position + 1], stage), position
    assert len(sim.nodes._states) <= breadth * width * (stages + 2), "of what is not the text's, nothing is kept"

"""The engine against a pipeline without a model: whatever the width of frames, the tokens of plain decoding."""

import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest

from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice
from speculation.decisions.policy import choose_policy
from speculation.drafters.base import Answer, Draft
from speculation.drafters.guarded import GuardedDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from speculation.engine import Engine
from tests.small_model import write_model_folder
from tests.unit.speculation.pipeline_sim import VOCABULARY, Rows, plain, sampled_along
from workers.decisions.lookahead import Lookahead
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig
from workers.shared.messages import (
    Frame,
    FromEngine,
    FromStage,
    Generate,
    Open,
    Ping,
    Pong,
    Ready,
    Rollback,
    Sampling,
    StageTimings,
    ToEngine,
    Tokens,
    ToStage,
)

PROMPT = [1, 2, 3, 4, 5]
NEW = 30


class InstantPipeline:
    """Stands for rank 0's channels and all that is behind them. A frame leaves when rank 0 has nothing to do."""

    announce_ns = 0
    dropped = 0

    def __init__(self, stages: int, requests: Sequence[Generate], seed: int) -> None:
        self.frames: list[Frame] = []
        self.told: dict[str, list[int]] = {request.id: [] for request in requests}
        self.open = set(self.told)
        self._stages = stages
        self._rng = random.Random(seed)
        self._requests = deque(requests)
        self._results: deque[FromStage] = deque()
        self._waiting: deque[Frame] = deque()
        self._lookahead = Lookahead("the last stage")
        self._rows: dict[int, Rows] = {}
        self._prompt_tokens: dict[int, int] = {}

    def ready(self, fingerprint: dict[str, str]) -> None:
        self._results += [Ready(stage, 1, 0, 0, 0.0, fingerprint) for stage in range(self._stages)]

    def wait(self, seconds: float) -> None:
        if self._waiting and (seconds > 0 or self._rng.random() < 0.1):
            self._compute(self._waiting.popleft())

    def result(self) -> FromStage | None:
        return self._results.popleft() if self._results else None

    def request(self) -> tuple[bytes, ToEngine] | None:
        return (b"client", self._requests.popleft()) if self._requests else None

    def announce(self, messages: Sequence[ToStage]) -> None:
        for message in messages:
            if isinstance(message, Ping):
                self._results += [Pong(message.number, stage, StageTimings()) for stage in range(self._stages)]
            elif isinstance(message, Frame | Open | Rollback):
                self._lookahead.hear(message)
                if isinstance(message, Open):
                    self._prompt_tokens[message.sequence] = message.prompt_tokens
                if isinstance(message, Frame):
                    self.frames.append(message)
                    self._waiting.append(message)

    def answer(self, client: bytes, message: FromEngine) -> None:
        if isinstance(message, Tokens):
            self.told[message.id] += message.tokens
            if message.finish is not None:
                self.open.discard(message.id)

    def vanished(self) -> set[bytes]:
        return set()

    def departed(self) -> list[int]:
        return []

    def dismiss(self) -> None:
        pass

    def _compute(self, frame: Frame) -> None:
        assert self._lookahead.pop() == frame
        rows = self._rows.setdefault(frame.sequence, Rows())
        rows.move(self._lookahead.moves(frame))
        if not self._lookahead.admit(frame):
            return
        rows.compute(frame)
        sample = sampled_along(rows, frame, self._lookahead.first, self._prompt_tokens[frame.sequence])
        if sample.tokens:
            self._lookahead.sampled(frame, sample)
        self._results.append(sample)


class TwoCandidates(ScriptedDrafter):
    """Where the script is wrong, its next candidate is right."""

    def draft(self, tokens: Sequence[int]) -> Answer:
        answer = super().draft(tokens)
        if not isinstance(answer, Draft):
            return answer
        return Draft((answer.token, (answer.token - 1) % VOCABULARY), chances=(0.6, 0.4))


@pytest.mark.parametrize("breadth", [1, 3, "auto"])
@pytest.mark.parametrize("width", [1, 2, 4, "auto"])
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("requests", [1, 4])
def test_tokens_are_those_of_plain_decoding(
    tmp_path: Path, breadth: int | str, width: int | str, wrong: float, requests: int
) -> None:
    stages, text = 3, plain(PROMPT, NEW)
    ends = Endpoints("ipc:///bus", "ipc:///results", ("ipc:///0",) * stages, ("ipc:///d",) * stages)
    (write_model_folder(tmp_path) / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 400, "num_hidden_layers": 4}'
    )
    config = EngineConfig(
        str(tmp_path),
        (2, 1, 1),
        ends,
        128,
        tokens_per_frame=width,  # type: ignore[arg-type]
        tree_width=breadth,  # type: ignore[arg-type]
        hollow_stages=True,
        drafter=DrafterConfig("scripted", always=True, scripted_acceptance=0.5),
        max_num_seqs=2,
        stall_timeout=2.0,
    )
    asked = [Generate(f"request {number}", PROMPT, NEW, Sampling(seed=0)) for number in range(requests)]
    pipeline = InstantPipeline(stages, asked, seed=5)
    script = Script([Recording(PROMPT + text, wrong_probability=wrong)])
    drafters = [GuardedDrafter(TwoCandidates(script, VOCABULARY)) for _ in range(2)]
    controller = Controller(stages, [Choice("scripted", prior=0.7)])
    engine = Engine(config, 400, choose_policy(config), drafters, pipeline, controller)  # type: ignore[arg-type]
    pipeline.ready(engine._info.fingerprint)
    engine._group.await_ready(engine._info.fingerprint, lambda: False)
    engine._serve_while(lambda: bool(pipeline.open))
    assert list(pipeline.told.values()) == [text] * requests
    decoding = [frame for frame in pipeline.frames if frame.position >= len(PROMPT)]
    widest = max(frame.end - frame.position for frame in decoding)
    assert max(len(frame.tokens) for frame in decoding) <= config.breadth * widest
    if breadth == 3 and requests == 1 and wrong == 1.0:
        assert engine._stats.report([], announce_ns=0, drafter_failures=0).counts.moved > 0
    if width == "auto":
        assert widest <= config.frame_width  # whether wider ones pay is a matter of times, this machine's
    else:
        assert widest == width or (wrong == 1.0 and breadth != 3)

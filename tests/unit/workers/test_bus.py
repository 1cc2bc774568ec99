"""Whatever bytes arrive at a socket, what is no message is dropped and counted, and nothing else happens."""

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.shared.bus import Intake, encode
from workers.shared.frames import Frame
from workers.shared.messages import (
    FromEngine,
    FromStage,
    Generate,
    Open,
    Pong,
    Sample,
    Sampling,
    StageTimings,
    Tap,
    ToEngine,
    TokenLogprobs,
    Tokens,
    ToStage,
)
from workers.shared.progress import Loading

SAMPLING = Sampling(seed=2**63, logit_bias={3: 1.5}, end_tokens=(2,), logprobs=2, grammar="start: /é+/")
EXAMPLES = [
    (ToEngine, Generate("r-0", [1, 2, 3], 5, SAMPLING, (2,))),
    (FromEngine, Tokens("r-0", [7], [TokenLogprobs(-0.5, [(7, -0.5)])], "stop")),
    (ToStage, Open(0, 3, 9, SAMPLING, 4)),
    (ToStage, Frame(8, 0, 3, 4, (1, 2, 3), True)),
    (FromStage, Sample(0, 3, 9, (7,), (TokenLogprobs(-0.5, [(7, -0.5)]),), None, (0.25,))),
    (FromStage, Tap(1, 0, 3, 9, "float32", b"\0" * 64)),
    (FromStage, Loading(1, 3, 100)),
    (FromStage, Pong(4, 1, StageTimings(frames=3))),
]


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_damaged_message_is_read_or_dropped(example: tuple[object, msgspec.Struct], data: st.DataObject) -> None:
    kind, message = example
    intake: Intake[msgspec.Struct] = Intake(kind, "test")
    damaged = bytearray(encode(message))
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    read = intake.read(bytes(damaged))
    assert (read is None) == (intake.dropped.count == 1)


@given(st.sampled_from([ToEngine, FromEngine, ToStage, FromStage]), st.binary(max_size=64))
def test_noise_is_dropped(kind: object, noise: bytes) -> None:
    intake: Intake[msgspec.Struct] = Intake(kind, "test")
    assert intake.read(noise) is None
    assert intake.dropped.count == 1


def test_a_message_nested_too_deep_is_dropped() -> None:
    intake: Intake[msgspec.Struct] = Intake(ToEngine, "test")
    deep = b"\x82\xa4type\xa5abort\xa1x" + b"\x91" * 100_000 + b"\xc0"
    assert intake.read(deep) is None


def test_the_log_of_dropped_messages_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    intake: Intake[msgspec.Struct] = Intake(ToEngine, "request bus")
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            intake.read(b"GET / HTTP/1.1")
    assert intake.dropped.count == 1000
    assert len(caplog.records) == 10
    assert "request bus" in caplog.text

"""The stages as a group: who belongs to it."""

import pytest

from speculation.group import StageGroup
from workers.shared.config import Endpoints, EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.messages import FromStage, Ready
from workers.shared.progress import Loading

CONFIG = EngineConfig(
    "model", (8, 8), Endpoints("inproc://bus", "inproc://results", ("inproc://0", "inproc://1"), ()), 64
)


class Scripted:
    """Stands for rank 0's channels: these messages, and then nothing."""

    def __init__(self, *messages: FromStage) -> None:
        self._messages = list(messages)

    def wait(self, seconds: float) -> None:
        assert self._messages, "still waiting"

    def departed(self) -> list[int]:
        return []

    def result(self) -> FromStage | None:
        return self._messages.pop(0) if self._messages else None


def ready(stage: int, dtype: str) -> Ready:
    return Ready(stage, 8, 100, 100, 1.0, {"dtype": dtype})


def test_stages_of_one_engine_are_ready() -> None:
    channels = Scripted(ready(1, "float32"), ready(0, "float32"))
    StageGroup(CONFIG, channels).await_ready({"dtype": "float32"}, lambda: False)  # type: ignore[arg-type]


def test_while_stages_load_they_are_waited_for_and_what_they_say_is_kept() -> None:
    channels = Scripted(Loading(1, 3, 100), ready(0, "float32"), Loading(1, 50, 100), ready(1, "float32"))
    StageGroup(CONFIG, channels).await_ready({"dtype": "float32"}, lambda: False)  # type: ignore[arg-type]


def test_a_stage_of_another_engine_ends_the_group_for_good_and_both_sides_are_named() -> None:
    channels = Scripted(ready(0, "float32"), ready(1, "bfloat16"))
    with pytest.raises(ConfigError, match="dtype is float32 for rank 0, bfloat16 for stage 1"):
        StageGroup(CONFIG, channels).await_ready({"dtype": "float32"}, lambda: False)  # type: ignore[arg-type]

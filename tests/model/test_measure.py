"""What one token takes on a device, as `echelon plan --measure` has it."""

from pathlib import Path

from workers.shared.config import Endpoints, EngineConfig
from workers.stage.measure import measure


def test_every_part_of_a_token_takes_some_time(tiny_model: Path) -> None:
    config = EngineConfig(str(tiny_model), (1, 1), Endpoints("", "", ("", ""), ("", "")), max_model_len=256)
    times = measure(config, "cpu")
    assert min(times.layer_ms, times.head_ms, times.embed_ms) > 0
    assert times.draft_ms == 0

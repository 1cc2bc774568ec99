"""What an operator is told once everything is up."""

import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from server.launcher.resolve import local_endpoints
from server.launcher.summary import example, summary
from server.settings import ServerOptions
from workers.shared.config import DrafterConfig, EngineConfig
from workers.shared.memory import Need
from workers.shared.messages import ControllerStatus

CONFIG = EngineConfig(
    model="m",
    split=(20, 10),
    endpoints=local_endpoints(Path("run"), 2, 1),
    max_model_len=1024,
    drafter=DrafterConfig("ngram"),
)
NEEDS = [Need("stage 0", "cpu", 1 << 30, 1 << 20), Need("stage 1", "cpu", 1 << 29, 0)]


def told(config: EngineConfig = CONFIG, controller: ControllerStatus | None = None, **options: bool) -> str:
    return "\n".join(summary("m", config, NEEDS, controller, ServerOptions(**options)))


def test_what_was_found_is_named() -> None:
    text = told()
    for part in ("m at http://127.0.0.1:8000/v1", "2 stages of 20+10 layers on cpu", "1.50 GiB weights, 1.00 GiB keys"):
        assert part in text
    assert "cuda:0, cuda:1" in told(replace(CONFIG, devices=("cuda:0", "cuda:1")))
    assert "http://127.0.0.1:8000/dashboard" in text
    assert "/dashboard" not in told(dashboard=False)


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        ({"none": 10.0, "ngram": 15.0}, "ngram; about 15.0 tokens a second expected, 1.50 times plain decoding"),
        ({"none": 10.0, "ngram": 9.0}, "ngram; about 10.0 tokens a second expected, best without drafts"),
        ({"ngram": 9.0}, "drafter   ngram"),
    ],
)
def test_the_expected_gain_is_the_calibrations(predicted: dict[str, float], expected: str) -> None:
    assert expected in told(controller=ControllerStatus("none", predicted))


def test_nothing_is_expected_before_it_is_measured() -> None:
    assert "found out in use" in told(
        controller=ControllerStatus("none", {"none": 1.0, "ngram": 2.0}, calibrated=False)
    )


def test_the_example_can_be_pasted() -> None:
    words = shlex.split(example("m", ServerOptions(api_keys=("secret",), ssl_certfile="c")))
    assert words[:2] == ["curl", "https://127.0.0.1:8000/v1/chat/completions"]
    assert "--insecure" in words
    assert "Authorization: Bearer $ECHELON_API_KEY" in words
    assert "secret" not in " ".join(words)

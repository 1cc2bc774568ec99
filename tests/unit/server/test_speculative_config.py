"""What operators of other engines type: taken where it means something here, refused by name where it does not."""

import json
from typing import Any

import pytest

from server.launcher.options import SERVE
from server.launcher.speculative_config import settle_speculation
from workers.shared.errors import ConfigError
from workers.shared.options.engine import DrafterOptions, EngineOptions
from workers.shared.options.sources import read


def settled(said: dict[str, Any] | str, **drafter: Any) -> DrafterOptions:
    text = said if isinstance(said, str) else json.dumps(said)
    return settle_speculation(EngineOptions(drafter=DrafterOptions(speculative_config=text, **drafter))).drafter


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"method": "eagle3", "model": "/heads/a", "num_speculative_tokens": 3},
            DrafterOptions(name="eagle3", model="/heads/a", num_speculative_tokens=3),
        ),
        (
            {"method": "eagle3", "model": "h", "num_speculative_tokens": 5, "parallel_drafting": True},
            DrafterOptions(name="peagle", model="h", num_speculative_tokens=5),
        ),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, "prompt_lookup_min": 2},
            DrafterOptions(name="ngram", num_speculative_tokens=4, ngram_max=5, ngram_min=2),
        ),
        ({"model": "[ngram]", "num_speculative_tokens": 4}, DrafterOptions(name="ngram", num_speculative_tokens=4)),
        ({"method": "draft_model", "model": "small"}, DrafterOptions(name="model", model="small")),
        ({"model": "small"}, DrafterOptions(model="small")),
        ({"method": "x_mtp", "num_speculative_tokens": 2}, DrafterOptions(name="mtp", num_speculative_tokens=2)),
        (
            {"method": "mtp", "draft_tensor_parallel_size": 1, "enforce_eager": True, "draft_sample_method": "greedy"},
            DrafterOptions(name="mtp"),
        ),
        ({"method": "ngram", "rejection_sample_method": "standard"}, DrafterOptions(name="ngram")),
        ("method=eagle3, model=/heads/a,num_speculative_tokens=3", DrafterOptions(
            name="eagle3", model="/heads/a", num_speculative_tokens=3
        )),
    ],
)  # fmt: skip
def test_vllms_words_are_ours(said: dict[str, Any] | str, expected: DrafterOptions) -> None:
    assert settled(said) == expected


def test_nothing_given_changes_nothing() -> None:
    options = EngineOptions(stages=3)
    assert settle_speculation(options) is options


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"method": "medusa"}, "method 'medusa' is not one of ngram, draft_model, eagle3, mtp"),
        ({"method": "ngram", "colour": 1}, "colour has no counterpart here: known are attention_backend, "),
        ({"method": "eagle3", "quantization": "fp8"}, "quantization has no counterpart here: give a --draft-model"),
        ({"method": "eagle3", "draft_tensor_parallel_size": 2}, "a drafter has one device, --draft-device"),
        ({"method": "ngram", "rejection_sample_method": "block"}, "text is always the target's"),
        ({"method": "ngram", "synthetic_acceptance_rates": [0.5]}, "--drafter scripted --scripted-acceptance P"),
        ({"method": "mtp", "model": "x"}, "the head of method mtp is in the checkpoint of MODEL itself"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens -1: must be a whole number"),
        ("{method: ngram}", "no JSON object"),
        ("method", "'method' is neither JSON nor key=value"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(said: dict[str, Any] | str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        settled(said)
    assert str(refused.value).startswith("--speculative-config: ")


def test_the_same_thing_said_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="--speculative-config and --drafter both say it"):
        settled({"method": "ngram"}, name="model")


def test_none_switches_everything_off_whatever_else_is_said() -> None:
    said = {"method": "eagle3", "model": "h", "num_speculative_tokens": 5}
    assert settled(said, name="none", module="m") == DrafterOptions(name="none")
    variable = {"ECHELON_DRAFTER": "none"}
    served = read(SERVE, ["--draft-model", "h", "--num-speculative-tokens", "3"], variable)
    assert settle_speculation(served.engine).drafter == DrafterOptions(name="none")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speculative-algorithm", "EAGLE3"], "--speculative-algorithm is here --drafter eagle3, model"),
        (["--speculative-num-steps=3"], "--speculative-num-steps is here --num-speculative-tokens K"),
        (["--speculative-eagle-topk", "4"], "--speculative-eagle-topk is here --tree-width W"),
        (["--colour"], "unrecognized arguments: --colour; see echelon serve --help"),
    ],
)
def test_flags_of_other_engines_are_answered_with_ours(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(SERVE, arguments, {})
    assert message in capsys.readouterr().err

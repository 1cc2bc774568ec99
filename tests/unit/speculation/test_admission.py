"""What the engine refuses, by whichever client it was sent."""

from math import inf, nan
from typing import Any

import msgspec
import pytest

from speculation.decisions.admission import refusal
from workers.shared.messages import Generate, Sampling

GOOD = Generate("a", [1, 2], 3, Sampling(seed=-1))


def test_a_request_at_every_bound_is_taken() -> None:
    sampling = Sampling(0, 0.0, 1.0, 10**9, 1.0, -2.0, 2.0, 0.01, {0: -100.0, 9: 100.0}, 3, (0, 9), 10**6)
    assert refusal(Generate("a", [0, 9], 6, sampling), room=8, vocab_size=10) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [10]}, "token ids"),
        ({"prompt": [-1]}, "token ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"generated": (10,)}, "token ids"),
        ({"generated": (1, 2, 3)}, "generated"),
        ({"max_tokens": 7}, "fit 8 tokens"),
    ],
)
def test_a_request_out_of_bounds_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    reason = refusal(msgspec.structs.replace(GOOD, **change), room=8, vocab_size=10)
    assert reason is not None
    assert named in reason


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": -1.0},
        {"temperature": nan},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": inf},
        {"top_k": -1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": -inf},
        {"logit_bias": {10: 1.0}},
        {"logit_bias": {1: nan}},
        {"end_tokens": (10,)},
        {"logprobs": -1},
        {"prompt_logprobs": -1},
    ],
)
def test_sampling_out_of_bounds_is_refused_by_name(change: dict[str, Any]) -> None:
    sampling = msgspec.structs.replace(GOOD.sampling, **change)
    reason = refusal(msgspec.structs.replace(GOOD, sampling=sampling), room=8, vocab_size=10)
    assert reason is not None
    assert next(iter(change)) in reason

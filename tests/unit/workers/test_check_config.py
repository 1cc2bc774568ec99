"""Configurations that cannot work are refused by the names of their flags, before anything starts."""

from typing import Any

import pytest

from speculation.decisions.policy import choose_policy
from workers.decisions.check_config import check_config
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig
from workers.shared.errors import ConfigError

GPUS = ("cuda:0", "cuda:1")


def config(*hosts: str, **settings: Any) -> EngineConfig:
    """Two stages on one host, or on `hosts`."""
    data = tuple(f"tcp://{host}:1" for host in hosts) or ("unix:///a", "unix:///b")
    ends = Endpoints("ipc:///bus", "ipc:///results", ("ipc:///c0", "ipc:///c1"), data, "file:///r")
    return EngineConfig("/m", (1, 1), ends, 64, **settings)


def drafter(name: Any, **settings: Any) -> dict[str, Any]:
    return {"drafter": DrafterConfig(name, **settings)}


@pytest.mark.parametrize(
    "good",
    [
        config(),
        config(transport="unix"),
        config(transport="gloo"),
        config(devices=GPUS, transport="nccl"),
        config("a", "b", devices=("cuda:0",), transport="nccl"),
        config(devices=("cuda:0",), transport="inprocess"),
        config(devices=("cuda:0", "cuda:0"), transport="zmq"),
        config(max_total_tokens=64),
        config(delta=1, **drafter("pdm", module="/module")),
        config(tokens_per_frame=4, **drafter("pdm", module="/module")),
        config(tokens_per_frame="auto", tree_width="auto", **drafter("ngram")),
        config(tokens_per_frame="auto", tree_width="auto", exact=True, **drafter("ngram")),
        config(**drafter("ngram", num_speculative_tokens=3)),
        config(tree_width=4, tokens_per_frame=2, **drafter("ngram")),
        config(tree_width=4, **drafter("pdm+ngram", module="/module")),
        config(tree_width=4, **drafter("ngram", num_speculative_tokens=3)),
        config(hollow_stages=True, **drafter("scripted", scripted_acceptance=0.5)),
    ],
)
def test_what_works_is_accepted(good: EngineConfig) -> None:
    check_config(good)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": ("tpu",)}, "--device 'tpu'"),
        ({"devices": ("cpu",) * 3}, "3 devices for 2 stages"),
        ({"devices": ("cpu", "cuda:0")}, "cannot be mixed"),
        ({"max_total_tokens": 63}, "--max-total-tokens 63 must be at least --max-model-len, which is 64"),
        ({"max_total_tokens": 64, "devices": GPUS, "transport": "nccl"}, "--max-total-tokens is for --device cpu"),
        ({"transport": "nccl"}, "--transport nccl needs --device cuda"),
        ({"devices": ("cuda:0",), "transport": "nccl"}, "--transport nccl needs a GPU for each stage"),
        ({"devices": GPUS, "transport": "gloo"}, "--transport gloo is for --device cpu"),
        ({"devices": GPUS, "transport": "inprocess"}, "--transport inprocess keeps hidden states on one device"),
        (drafter("pdm", module="m", num_speculative_tokens=2), "--drafter pdm reads hidden states"),
        (drafter("pdm+ngram", module="m", num_speculative_tokens=2), "leave --num-speculative-tokens out"),
        ({"delta": 1, **drafter("ngram", num_speculative_tokens=2)}, "--delta 1"),
        ({"tokens_per_frame": 2, **drafter("ngram", num_speculative_tokens=2)}, "--tokens-per-frame 2 is for"),
        ({"tokens_per_frame": 2, "exact": True, **drafter("ngram")}, "--exact: frames of several tokens"),
        ({"exact": True, **drafter("ngram", num_speculative_tokens=2)}, "--exact: frames of several tokens"),
        ({"exact": True, "tree_width": 2, **drafter("ngram")}, "--exact: frames of several tokens"),
        ({"tree_width": 2, **drafter("exit", module="m")}, "--tree-width 2: --drafter exit"),
        ({"tree_width": "auto", **drafter("exit", module="m")}, "--tree-width auto: --drafter exit"),
        ({"tree_width": "auto", **drafter("ngram", num_speculative_tokens=2)}, "--tree-width auto is for frames"),
        (drafter("ngram", ngram_min=7), "--ngram-min 7"),
        (drafter("pdm"), "--drafter pdm needs --draft-module"),
        (drafter("none", module="m"), "--draft-module is for"),
        (drafter("model"), "--draft-model MODEL belong together"),
        (drafter("ngram", draft_model="m"), "--draft-model MODEL belong together"),
        (drafter("cascade"), "--cascade SMALL.* belong together"),
        (drafter("ngram", cascade=("m",)), "--cascade SMALL.* belong together"),
        (drafter("cascade", cascade=("m",), cascade_lookahead=65), "--cascade-lookahead 65 must be at most"),
        (drafter("cascade", cascade=("m",), cascade_devices=("gpu",)), "--cascade-device 'gpu'"),
        (drafter("cascade", cascade=("m",), cascade_devices=("cpu",) * 2), "--cascade-device names 2 devices for 1"),
        (drafter("scripted"), "--script FILE or --scripted-acceptance"),
        (drafter("scripted", script="a", scripted_acceptance=0.5), "not both"),
        (drafter("ngram", script="a"), "--script is for"),
        ({"hollow_stages": True}, "--hollow-stages"),
        ({"hollow_stages": True, "devices": GPUS, **drafter("none")}, "--hollow-stages"),
    ],
)
def test_what_cannot_work_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(config(**settings))


def test_one_gpu_for_the_stages_of_one_host_is_not_enough_for_nccl() -> None:
    with pytest.raises(ConfigError, match="gives cuda:0 to several"):
        check_config(config("a", "a", devices=("cuda:0",), transport="nccl"))


def test_as_many_addresses_as_stages() -> None:
    with pytest.raises(ConfigError, match=r"endpoints.data: 3 addresses for 2 stages"):
        check_config(config("a", "b", "c"))


@pytest.mark.parametrize(
    ("settings", "shapes"),
    [
        ({}, [(1, 1)]),
        ({"tokens_per_frame": "auto"}, [(1, 1), (2, 1), (4, 1), (8, 1)]),
        ({"tree_width": "auto"}, [(1, 1), (1, 2), (1, 4), (1, 8)]),
        ({"tokens_per_frame": 4, "tree_width": "auto"}, [(4, 1), (4, 2), (4, 4)]),
        ({"tokens_per_frame": "auto", "tree_width": 3}, [(1, 3), (2, 3), (4, 3)]),
        ({"tokens_per_frame": 32, "tree_width": "auto"}, [(32, 1)]),
        ({"tokens_per_frame": 8, "tree_width": 4}, [(8, 4)]),
        ({"tokens_per_frame": "auto", "tree_width": "auto", "exact": True}, [(1, 1)]),
        (drafter("ngram", num_speculative_tokens=3), [(4, 1)]),
    ],
)
def test_frames_have_the_shape_that_is_asked_for_or_one_whose_rows_are_measured(
    settings: dict[str, Any], shapes: list[tuple[int, int]]
) -> None:
    asked = config(**settings)
    assert list(asked.shapes) == shapes
    assert choose_policy(asked).scratch == asked.scratch

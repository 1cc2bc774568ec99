"""What config.json a GGUF file's keys mean, and which keys are refused."""

from typing import Any

import pytest

from workers.prepare.gguf.configuration import MODEL_TYPES, model_config
from workers.prepare.gguf.tensors import tensor_names
from workers.prepare.gguf.tokenizer import check_tokenizer_keys, end_tokens
from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported

TENSORS = {"token_embd.weight": (100, 64)}


def keys(architecture: str = "llama", **more: Any) -> dict[str, Any]:
    """What every file has; of `more`, two underscores stand for a dot."""
    own = {
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "block_count": 12,
        "context_length": 2048,
        "embedding_length": 64,
        "feed_forward_length": 128,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return {"general.architecture": architecture, **{f"{architecture}.{name}": value for name, value in own.items()}}


@pytest.mark.parametrize("architecture", sorted(MODEL_TYPES))
def test_what_is_made_of_a_file_is_supported(architecture: str) -> None:
    more = {
        "gemma3": {"attention__sliding_window": 512},
        "qwen3moe": {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32},
    }
    config = model_config(keys(architecture, **more.get(architecture, {})), TENSORS, {})
    check_supported(config)
    assert config["model_type"] == MODEL_TYPES[architecture]
    assert (config["head_dim"], config["tie_word_embeddings"]) == (16, True)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({}, {"rope_type": "default"}),
        ({"type": "none", "factor": 4.0}, {"rope_type": "default"}),
        ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 512, "attn_factor": 2.0},
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "attention_factor": pytest.approx(2.27726),
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        ),
    ],
)
def test_rope_scaling(scaling: dict[str, Any], expected: dict[str, Any]) -> None:
    more = {f"rope__scaling__{name}": value for name, value in scaling.items()}
    config = model_config(keys(rope__freq_base=5e5, **more), TENSORS, {})
    assert config["rope_parameters"] == {"rope_theta": 5e5, **expected}


def test_frequencies_are_divided_by_the_tensor_and_the_factor() -> None:
    rope = model_config(keys(rope__scaling__factor=2.0), TENSORS, {"rope_freqs.weight": [1.0, 8.0]})["rope_parameters"]
    assert rope["short_factor"] == rope["long_factor"] == [2.0, 16.0]
    assert rope["attention_factor"] == 1.0


def test_gemma_has_two_kinds_of_layers() -> None:
    config = model_config(keys("gemma3", attention__sliding_window=512, rope__scaling__factor=8.0), TENSORS, {})
    assert config["layer_types"] == (["sliding_attention"] * 5 + ["full_attention"]) * 2
    assert config["rope_parameters"]["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert config["rope_parameters"]["full_attention"]["factor"] == 8.0


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"expert_count": 8}, "llama.expert_used_count is missing"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1}, "llama.expert_shared_count is 1"),
        ({"attention__value_length": 8}, "llama.attention.value_length is 8"),
        ({"rope__dimension_count": 8}, "llama.rope.dimension_count is 8"),
        ({"rope__scaling__type": "longrope"}, "llama.rope.scaling.type is 'longrope'"),
        ({"attention__head_count_kv": [2, 1]}, r"llama.attention.head_count_kv is \[2, 1\]"),
        ({"attention__sliding_window": 512}, "llama.attention.sliding_window is 512"),
        ({"attention__scale": 0.5}, "llama.attention.scale is 0.5"),
        ({"something__new": 0}, "llama.something.new is 0"),
    ],
)
def test_refused_by_name(more: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        model_config(keys(**more), TENSORS, {})


def test_missing_keys_are_named() -> None:
    incomplete = keys()
    del incomplete["llama.context_length"]
    with pytest.raises(ConfigError, match=r"key llama\.context_length is missing"):
        model_config(incomplete, TENSORS, {})


def test_keys_without_effect_and_keys_of_other_tools_are_no_obstacle() -> None:
    more = {"expert_count": 0, "attention__causal": True, "rope__scaling__finetuned": True}
    model_config({**keys(**more), "quantize.imatrix.file": "x", "mradermacher.version": 3}, TENSORS, {})


def test_tensors_are_renamed_or_refused() -> None:
    def named(architecture: str, name: str, *shape: int) -> list[str]:
        return tensor_names(architecture, name, shape)

    assert named("gemma3", "blk.3.ffn_norm.weight", 8) == ["model.layers.3.pre_feedforward_layernorm.weight"]
    assert named("qwen2", "blk.3.ffn_norm.weight", 8) == ["model.layers.3.post_attention_layernorm.weight"]
    assert named("qwen3moe", "blk.0.ffn_up_exps.weight", 2, 4, 8) == [
        f"model.layers.0.mlp.experts.{expert}.up_proj.weight" for expert in range(2)
    ]
    for name in ("rope_factors_long.weight", "blk.0.ffn_gate_shexp.weight", "blk.0.attn_q_norm.weight", "blk.0.attn_q"):
        with pytest.raises(ConfigError, match=name):
            named("llama", name, 8, 8)


def test_the_end_of_a_turn_is_looked_for_where_it_is_not_named() -> None:
    tokens = ["<eos>", "<end_of_turn>", "a"]
    named = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 3, 1]}
    assert end_tokens(named) == [0, 1]
    assert end_tokens({**named, "tokenizer.ggml.eot_token_id": 2}) == [0, 2]


@pytest.mark.parametrize(
    ("name", "value"), [("ggml.model", "t5"), ("ggml.pre", "unheard-of"), ("ggml.add_eos_token", True), ("new.key", 1)]
)
def test_tokenizers_are_refused_by_key(name: str, value: object) -> None:
    known: dict[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    check_tokenizer_keys(known)
    with pytest.raises(ConfigError, match=f"tokenizer.{name} is {value!r}"):
        check_tokenizer_keys({**known, f"tokenizer.{name}": value})

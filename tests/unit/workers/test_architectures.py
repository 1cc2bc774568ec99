"""What is refused, and that the reason is said."""

from typing import Any

import pytest

from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import REFUSED, check_supported
from workers.shared.model_files.families import FAMILIES


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_supported(kind: str) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0}
    said = {"model_type": kind, "rope_scaling": rope, "is_hybrid": None, "use_mrope": False}
    check_supported(said | dict.fromkeys(FAMILIES[kind].assumed, 0))


@pytest.mark.parametrize("kind", [*sorted(REFUSED), "something_new"])
def test_refused_by_name(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}' is not supported: .+ Supported are .*llama"):
        check_supported({"model_type": kind})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "model_type is missing"),
        ({"model_type": "mamba"}, "recurrent"),
        ({"model_type": "kimi_k2"}, "latent attention"),
        ({"model_type": "pegasus", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "llava"}, "multimodal"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}, "'bitsandbytes'"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"model_type": "llama", "rope_scaling": {"type": "su", "factor": 2.0}}, "'su'"),
        ({"model_type": "llama", "rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "'mrope'"),
        ({"model_type": "llama", "rope_scaling": {"type": "yarn", "new_rule": 2.0}}, "rope_scaling.new_rule is 2.0"),
        ({"model_type": "llama", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"model_type": "llama", "logits_scaling": 8.0}, "logits_scaling is 8.0"),
        ({"model_type": "llama", "sliding_window": 4096}, "sliding_window is 4096"),
        ({"model_type": "llama", "num_hidden_layers": "16"}, "num_hidden_layers is '16', not a whole number"),
        ({"model_type": "llama", "hidden_size": None}, "hidden_size is None, not a whole number"),
        ({"model_type": "llama", "num_key_value_heads": 0}, "num_key_value_heads is 0, not a whole number"),
        ({"model_type": "deepseek_v3", "scoring_func": "softmax"}, "scoring_func is 'softmax'; of 'deepseek_v3' it is"),
        ({"model_type": "deepseek_v2", "norm_topk_prob": True}, "it is served where it is unset"),
        ({"model_type": "qwen2", "use_mrope": True}, "use_mrope is True"),
        ({"model_type": "gemma4_text"}, "hidden_size_per_layer_input is 256: layers that read embeddings of their own"),
        (
            {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 20},
            "num_kv_shared_layers is 20: layers that read the keys and values of others",
        ),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "new"}}}, "'new'"),
    ],
)
def test_refusals_say_why(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_supported(config)
    assert reason in str(caught.value)

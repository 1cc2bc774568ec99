"""Tiny random models of every supported architecture, written once a session as ordinary model folders."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tests.measure.pruned_model import write_pruned_model
from workers.shared.model_files.families import family_of

LAYERS = 6
VOCABULARY = 199  # odd on purpose: nothing may depend on a round size

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # large enough for greedy text to wander
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
ROPE = {"rope_theta": 10000.0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Everything is computed as by a stage on a CPU, whose threads are one by default."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shallow_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model with half of its layers: for whatever takes as long as there are layers to compute."""
    folder = tmp_path_factory.mktemp("shallow") / "model"
    write_pruned_model(tiny_model, folder, range(8, 16))
    return folder


def _kinds(full_every: int) -> list[str]:
    return ["full_attention" if (i + 1) % full_every == 0 else "sliding_attention" for i in range(LAYERS)]


CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-rope-linear": LlamaConfig(**SIZES, rope_parameters={**ROPE, "rope_type": "linear", "factor": 4.0}),
    "llama-rope-llama3": LlamaConfig(
        **SIZES,
        rope_parameters={
            **ROPE,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "llama-rope-yarn": LlamaConfig(
        **SIZES,
        rope_parameters={
            **ROPE,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-window": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=9, layer_types=_kinds(2)),
    "qwen3": Qwen3Config(**SIZES, head_dim=20, tie_word_embeddings=False),
    "mistral": MistralConfig(**SIZES, head_dim=16, sliding_window=None),
    "mistral-window": MistralConfig(**SIZES, head_dim=16, sliding_window=7),
    "olmo2": Olmo2Config(**SIZES, tie_word_embeddings=False),
    "smollm3": SmolLM3Config(**SIZES, no_rope_layer_interval=3, tie_word_embeddings=True),
    "gemma3": Gemma3TextConfig(
        **SIZES,
        head_dim=16,
        query_pre_attn_scalar=20,
        sliding_window=8,
        layer_types=_kinds(3),
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        },
        final_logit_softcapping=30.0,
    ),
}


def write_model(config: PreTrainedConfig, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Writes a random model with this config into `folder`, in several files."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # initialised to constants, which would hide mix-ups
                parameter.add_(torch.randn_like(parameter) * 0.2)
        # Of mean zero (some families add 1): otherwise a tied head would favour the token just read, again and again.
        final_norm = getattr(getattr(model.model, family_of(config.to_dict()).norm), "weight", None)
        if final_norm is not None:
            final_norm.normal_(mean=-1.0 if config.model_type.startswith(("gemma", "nemotron")) else 0.0)
    model.to(dtype).save_pretrained(folder, max_shard_size="60KB")


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each of `CONFIGS`."""
    root = tmp_path_factory.mktemp("models")
    folders = {}
    for name, config in CONFIGS.items():
        folders[name] = root / name
        write_model(config, folders[name])
    return folders


@pytest.fixture(params=sorted(CONFIGS))
def model_folder(request: pytest.FixtureRequest, model_folders: dict[str, Path]) -> Path:
    """Each architecture in turn."""
    return model_folders[request.param]

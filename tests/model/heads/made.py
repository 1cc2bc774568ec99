"""Random draft heads for tests, and their files as each vendor writes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from speculation.decisions.taps import columns_of_stages
from speculation.drafters.base import Drafter, Maker
from speculation.drafters.heads.chain import ChainDrafter
from speculation.drafters.heads.parallel import ParallelDrafter
from speculation.heads.checkpoint import save_head
from speculation.heads.config import HeadConfig
from speculation.heads.network import EagleHead
from speculation.heads.runtime import HeadRuntime
from speculation.taps import TapBuffer
from workers.prepare.tiny_model import HIDDEN, LAYERS, VOCABULARY

MASK_TOKEN = 3
DRAFT_IDS = tuple(range(1, VOCABULARY, 2))
# For the built-in tiny model; heads and widths are no round multiples of each other.
EAGLE3 = HeadConfig(
    hidden_size=HIDDEN,
    intermediate_size=96,
    attention_heads=4,
    kv_heads=2,
    head_dim=12,
    layers=1,
    vocab_size=VOCABULARY,
    draft_vocab_size=len(DRAFT_IDS),
    features=(2, LAYERS // 2, LAYERS - 3),
    target_hidden_size=HIDDEN,
)
PEAGLE = replace(EAGLE3, layers=2, own_embedding=True, mask_token_id=MASK_TOKEN, features=(2, 5, 9, 12, 14))
VARIANTS: dict[str, HeadConfig] = {
    "plain": EAGLE3,
    "3.1": replace(EAGLE3, fc_norm=True, norm_output=True, norm_before_residual=True),
    "gpt-oss": replace(EAGLE3, norm_before_fc=True, features=(1, 11, 9)),
    "qwen3": replace(EAGLE3, layer_type="qwen3", layers=3, attention_bias=True, fc_bias=True),
    "whole": replace(EAGLE3, draft_vocab_size=VOCABULARY, own_embedding=True, hidden_size=40),
    "the target's head": replace(EAGLE3, draft_vocab_size=VOCABULARY, own_head=False),
    "scaled": replace(
        EAGLE3,
        rope={
            "rope_type": "llama3",
            "rope_theta": 50000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
}


def random_head(config: HeadConfig, seed: int = 5) -> EagleHead:
    """Weights large enough that a wrong row shows; of what is the target's, nothing."""
    ids = range(1, 2 * config.draft_vocab_size, 2) if config.draft_vocab_size < config.vocab_size else None
    head = EagleHead(config, ids)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5 * 1.5, generator=generator)
    return head.eval().requires_grad_(False)


def write_speculators(head: EagleHead, folder: Path, **said: Any) -> Path:
    """As vLLM and speculators have it; `said` changes config.json, None takes a field out."""
    save_head(head, folder, "someone/the-target", torch.float32)
    return _change(folder, said)


def write_safeailab(head: EagleHead, folder: Path, *, pickled: bool = True, **said: Any) -> Path:
    """`pytorch_model.bin` with `midlayer.`, and a configuration like a Llama's."""
    return _write_flat(head, folder, ["LlamaForCausalLM"], pickled, said)


def write_specforge(head: EagleHead, folder: Path, **said: Any) -> Path:
    """As SGLang reads it: numbers of layers whose outputs are meant."""
    layers = [index - 1 for index in head.config.features]
    architecture = "PEagleDraftModel" if head.config.parallel else "LlamaForCausalLMEagle3"
    flags = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}, "norm_before_residual": False}
    return _write_flat(head, folder, [architecture], False, flags | said)


def drafters_of(head: EagleHead, split: Sequence[int], capacity: int, frames: int) -> Maker:
    """A drafter a slot, as the loader makes them; at most `frames` frames are in flight."""
    columns = columns_of_stages(head.anchors, split)
    shape = (capacity, len(head.anchors), head.target_width)

    def make(slot: int) -> Drafter:
        taps, runtime = TapBuffer(columns, shape, torch.float32, "cpu"), HeadRuntime(head, capacity + 64)
        if head.config.parallel:
            return ParallelDrafter(runtime, taps, head.config.vocab_size, head, frames)
        return ChainDrafter(runtime, taps, head.config.vocab_size)

    return make


def _write_flat(head: EagleHead, folder: Path, architectures: list[str], pickled: bool, said: dict[str, Any]) -> Path:
    write_speculators(head, folder)
    config = json.loads((folder / "config.json").read_text())
    flat = {**config["transformer_layer_config"], "draft_vocab_size": config["draft_vocab_size"]}
    flat |= {"architectures": architectures, "num_hidden_layers": 40, "torch_dtype": "float16", "use_cache": True}
    flat["rope_theta"] = flat.pop("rope_parameters")["rope_theta"]
    if head.config.parallel:
        flat["mask_token_id"] = head.config.mask_token_id
    tensors = load_file(folder / "model.safetensors")
    single = head.config.layers == 1
    renamed = {(name.replace("layers.0.", "midlayer.") if single else name): value for name, value in tensors.items()}
    (folder / "model.safetensors").unlink()
    if pickled:
        torch.save(renamed, folder / "pytorch_model.bin")
    else:
        save_file(renamed, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(flat))
    return _change(folder, said)


def _change(folder: Path, said: dict[str, Any]) -> Path:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | said
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return folder

"""From a head's config.json and the shapes of its tensors to a `HeadConfig`, and to the readings that it leaves open.

Vendors agree on names of tensors and disagree on words: which hidden state a layer's number means, and what holds
where a flag is absent. What the tensors say goes before what the configuration says.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from torch import Tensor
from transformers import LlamaConfig

from speculation.heads.config import HeadConfig, check_features, default_features
from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported
from workers.shared.model_files.draft_heads import MASKS, HeadLayout, RecognisedHead

_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_LIST = "eagle_aux_hidden_state_layer_ids"
# Of heads alone; the rest of a configuration is that of a layer.
_OWN = frozenset({*_FLAGS, _LIST, *MASKS, "draft_vocab_size", "target_hidden_size", "eagle_config"})
# What changes nothing here.
_IDLE = frozenset({
    "embed_requires_grad",
    "has_no_defaults_at_init",
    "parallel_drafting",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
    "target_model_type",
    "transformer_layer_config",
    "use_aux_hidden_state",
    "use_input_layernorm_in_first_layer",  # as all heads here: if not, tensors would be missing
    "use_last_layernorm",
})  # fmt: skip


class TargetFacts(NamedTuple):
    """What a head must fit."""

    layers: int
    hidden_size: int
    vocab_size: int


class Readings(NamedTuple):
    """How a head may be meant: as declared first, then the others that its files leave open."""

    declared: HeadConfig
    others: Sequence[HeadConfig] = ()
    open: Sequence[str] = ()  # what is not said, in words


def read_layout(
    said: Mapping[str, Any], head: RecognisedHead, tensors: Mapping[str, Tensor], target: TargetFacts, source: Path
) -> Readings:
    """How the head with these `tensors` is meant; raises `ConfigError` naming the field that is not understood."""
    inner = said.get("transformer_layer_config") or {}
    eagle = said.get("eagle_config") or {}
    layer = {**{name: value for name, value in said.items() if name not in _OWN | _IDLE}, **inner}
    _check_layer(layer, source)
    _check_eagle(eagle, source)
    flat = {**layer, **eagle, **{name: value for name, value in said.items() if name in _OWN}}
    hidden, wide = _shapes(tensors, source)
    target_hidden = flat.get("target_hidden_size") or target.hidden_size
    if target_hidden != target.hidden_size:
        raise ConfigError(
            f"{source}: made for a target of hidden size {target_hidden}{_verifier(said)}, but this one has "
            f"{target.hidden_size}"
        )
    if wide % target_hidden:
        raise ConfigError(
            f"{source}: fc.weight reads {wide} numbers of a token, which are no whole number of hidden states of the "
            f"target's {target_hidden}{_verifier(said)}"
        )
    if int(flat.get("vocab_size") or target.vocab_size) != target.vocab_size:
        raise ConfigError(
            f"{source}: made for a vocabulary of {flat['vocab_size']} tokens{_verifier(said)}, but the target has "
            f"{target.vocab_size}"
        )
    given = tuple(flat[_LIST]) if flat.get(_LIST) else None
    features = _features(given, wide // target_hidden, target.layers, source)
    heads = int(flat["num_attention_heads"])
    config = HeadConfig(
        hidden_size=hidden,
        intermediate_size=int(flat["intermediate_size"]),
        attention_heads=heads,
        kv_heads=int(flat.get("num_key_value_heads") or heads),
        head_dim=int(flat.get("head_dim") or hidden // heads),
        layers=_layers(tensors),
        vocab_size=target.vocab_size,
        draft_vocab_size=_draft_rows(flat, tensors, target.vocab_size, source),
        features=features,
        target_hidden_size=target_hidden,
        rms_norm_eps=float(flat.get("rms_norm_eps") or 1e-6),
        hidden_act=str(flat.get("hidden_act") or "silu"),
        rope=_rope(flat),
        max_position_embeddings=int(flat.get("max_position_embeddings") or 2048),
        layer_type="qwen3" if "layers.0.self_attn.q_norm.weight" in tensors else "llama",
        attention_bias="layers.0.self_attn.q_proj.bias" in tensors,
        fc_bias="fc.bias" in tensors,
        norm_before_fc="input_norm.weight" in tensors,
        fc_norm="fc_norm.0.weight" in tensors,
        norm_before_residual=bool(flat.get("norm_before_residual", head.layout == "speculators")),
        norm_output=bool(flat.get("norm_output", False)),
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        mask_token_id=_mask_token(flat, target.vocab_size, source) if head.kind == "peagle" else None,
    )
    for name in ("norm_before_fc", "fc_norm"):
        if flat.get(name) is not None and bool(flat[name]) != getattr(config, name):
            raise ConfigError(f"{source}: {name} is {flat[name]}, but its tensors say otherwise")
    return _readings(config, head.layout, flat, given, target.layers, source)


def _check_layer(layer: Mapping[str, Any], source: Path) -> None:
    """Refuses what changes a layer and is not known, as for any model of the family."""
    kinds = layer.get("layer_types")
    if kinds and set(kinds) != {"full_attention"}:
        raise ConfigError(f"{source}: layer_types {sorted(set(kinds))}: a head's layers see everything")
    if layer.get("sliding_window") and layer.get("use_sliding_window", True):
        raise ConfigError(f"{source}: sliding_window is {layer['sliding_window']}: a head's layers see everything")
    if layer.get("quantization_config"):
        raise ConfigError(f"{source}: quantization_config: quantised heads are not read; use one that is not")
    windows = ("sliding_window", "use_sliding_window", "max_window_layers")
    try:
        check_supported({**{name: said for name, said in layer.items() if name not in windows}, "model_type": "llama"})
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    for name in ("num_attention_heads", "intermediate_size"):
        if not isinstance(layer.get(name), int):
            raise ConfigError(f"{source}: config.json does not say {name}")


def _check_eagle(eagle: Mapping[str, Any], source: Path) -> None:
    for name, value in eagle.items():
        if value and name not in _OWN | _IDLE:
            raise ConfigError(
                f"{source}: eagle_config.{name} is {value!r}, which is not known; if it changes nothing that the head "
                f"computes, remove it"
            )


def _shapes(tensors: Mapping[str, Tensor], source: Path) -> tuple[int, int]:
    """Width of the head, and of what `fc` reads."""
    if "fc.weight" not in tensors or tensors["fc.weight"].dim() != 2:
        raise ConfigError(f"{source}: lacks fc.weight, by which a head of EAGLE-3 reads hidden states")
    hidden, wide = tensors["fc.weight"].shape
    return hidden, wide


def _layers(tensors: Mapping[str, Tensor]) -> int:
    """As many as have tensors: what configurations say has been the target's count."""
    return len({name.split(".")[1] for name in tensors if name.startswith("layers.")})


def _draft_rows(flat: Mapping[str, Any], tensors: Mapping[str, Tensor], vocab_size: int, source: Path) -> int:
    rows = tensors["lm_head.weight"].shape[0] if "lm_head.weight" in tensors else None
    if rows is None and flat.get("tie_word_embeddings"):
        raise ConfigError(f"{source}: lacks lm_head.weight, and tie_word_embeddings does not say whose embedding it is")
    said = flat.get("draft_vocab_size")
    if rows is not None and said is not None and rows != said:
        raise ConfigError(f"{source}: draft_vocab_size is {said}, but lm_head.weight has {rows} rows")
    return int(rows or said or vocab_size)


def _features(given: Sequence[int] | None, count: int, layers: int, source: Path) -> tuple[int, ...]:
    """The list as it is given; where it is not, the usual three."""
    features = default_features(layers) if given is None else tuple(map(int, given))
    if len(features) != count:
        said = "no list of layers" if given is None else f"the layers {list(given)}"
        raise ConfigError(f"{source}: {said}, but fc.weight reads {count} hidden states of a token")
    return features


def _mask_token(flat: Mapping[str, Any], vocab_size: int, source: Path) -> int:
    found = next((flat[name] for name in MASKS if flat.get(name) is not None), None)
    if not isinstance(found, int) or not 0 <= found < vocab_size:
        raise ConfigError(f"{source}: mask_token_id is {found}; a P-EAGLE head needs a token below {vocab_size}")
    return found


def _rope(flat: Mapping[str, Any]) -> dict[str, Any]:
    """As transformers reads it, in the words of its older and newer versions."""
    names = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "head_dim", "hidden_size")
    said = {name: flat[name] for name in (*names, "num_attention_heads") if flat.get(name) is not None}
    rope: Any = LlamaConfig(**said).rope_parameters
    return dict(rope)


def _readings(
    config: HeadConfig,
    layout: HeadLayout,
    flat: Mapping[str, Any],
    given: Sequence[int] | None,
    layers: int,
    source: Path,
) -> Readings:
    """`config` as its layout means it, and every other combination of what is not said for certain."""
    orders = list(_orders(config.features, layout, given, layers))
    if not orders:
        check_features(config.features, layers, str(source))
    doubts: list[tuple[str, list[dict[str, Any]]]] = [
        ("which hidden states its list of layers means", [{"features": order} for order in orders])
    ]
    if flat.get("norm_before_residual") is None:
        doubts.append(("norm_before_residual", _either("norm_before_residual", config.norm_before_residual)))
    if layout == "specforge" and config.norm_output:
        doubts.append(("norm_output", _either("norm_output", False)))  # what wrote it meant another norm
    changes = [
        {name: value for change in combination for name, value in change.items()}
        for combination in product(*(options for _, options in doubts))
    ]
    first, *others = (replace(config, **change) for change in changes)
    check_features(first.features, layers, str(source))
    return Readings(first, others, [name for name, options in doubts if len(options) > 1])


def _either(name: str, first: bool) -> list[dict[str, Any]]:
    return [{name: first}, {name: not first}]


def _orders(
    features: tuple[int, ...], layout: HeadLayout, given: Sequence[int] | None, layers: int
) -> Iterator[tuple[int, ...]]:
    """The hidden states that a list may mean, as `layout` means it first: inputs of these layers, or their outputs.

    Both are given out by SGLang's and vLLM's readers of the same files; what no target has is none of them.
    """
    after = tuple(index + 1 for index in features)
    candidates = (features,) if given is None else (after, features) if layout == "specforge" else (features,)
    for order in candidates:
        if all(1 <= index <= layers for index in order):
            yield order


def _verifier(said: Mapping[str, Any]) -> str:
    """Whom a head was made for, where it says so."""
    about = said.get("speculators_config")
    verifier = about.get("verifier") if isinstance(about, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return f" ({name})" if name else ""

"""What a draft head is: the part of its checkpoint that is not weights, in one form for all layouts."""

from typing import Any

import msgspec

from workers.shared.errors import ConfigError

HEAD_LAYER_TYPES = ("llama", "qwen3")  # the second normalises queries and keys


def default_rope() -> dict[str, Any]:
    """Rotation without scaling."""
    return {"rope_type": "default", "rope_theta": 10000.0}


class HeadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of an EAGLE-3 or P-EAGLE head, and how its files are to be read.

    `features` are indices of the target's hidden states, k being the input of decoder layer k and the output of layer
    k - 1, in the order in which they are concatenated.
    """

    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab_size: int  # the target's
    draft_vocab_size: int
    features: tuple[int, ...]
    target_hidden_size: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    rope: dict[str, Any] = msgspec.field(default_factory=default_rope)  # in the words of transformers
    max_position_embeddings: int = 2048
    layer_type: str = "llama"
    attention_bias: bool = False
    fc_bias: bool = False
    norm_before_residual: bool = False  # the first layer adds to the normalised feature, not to the feature
    norm_before_fc: bool = False  # one norm over all features of a token
    fc_norm: bool = False  # one norm for each feature
    norm_output: bool = False  # what is fed back is normalised
    own_embedding: bool = False  # else the target's
    own_head: bool = True  # else the target's rows
    mask_token_id: int | None = None  # of heads that draft several tokens in one pass

    @property
    def parallel(self) -> bool:
        """Whether it drafts several tokens in one pass (P-EAGLE)."""
        return self.mask_token_id is not None


def default_features(layers: int) -> tuple[int, int, int]:
    """The hidden states that EAGLE-3 reads where nothing else is said, of a target with so many layers."""
    return 2, layers // 2, layers - 3


def check_features(features: tuple[int, ...], layers: int, source: str) -> None:
    """Raises `ConfigError` unless `features` are hidden states that stages of a target with `layers` layers have."""
    if not features or len(set(features)) != len(features) or not all(1 <= index <= layers for index in features):
        raise ConfigError(
            f"{source}: reads the hidden states {list(features)}; they must be different, from 1 to {layers}, as the "
            f"target has {layers} layers"
        )

"""Draft-then-verify and tensor parallelism in closed form. Pure."""

from speculation.simulate.pipeline import Pipeline, speed_law


def tokens_per_round(drafts: int, acceptance: float) -> float:
    """Expected tokens of one verification: the accepted prefix of `drafts` drafts, and the token after it."""
    return sum(acceptance**position for position in range(drafts + 1))


def tokens_per_cycle(stages: int, acceptance: float, drafts: int = 0, width: int = 1) -> float:
    """The law of either frame policy, if nothing but the stages took time.

    `drafts` a frame are draft-then-verify; 0: frames of `width` tokens in every stage.
    """
    return tokens_per_round(drafts, acceptance) / stages if drafts else speed_law(stages, acceptance, width)


def draft_then_verify(pipeline: Pipeline, drafts: int, acceptance: float) -> float:
    """Tokens/s of classic speculative decoding: `drafts` drafts one after the other, then one frame with all of them.

    A frame takes as long as one token: reading the weights takes longer than computing.
    """
    if drafts < 1:
        raise ValueError("drafts: a round needs at least 1")
    round_ms = drafts * pipeline.draft_ms + pipeline.token_ms
    return 1000 * tokens_per_round(drafts, acceptance) / round_ms


def best_drafts(pipeline: Pipeline, acceptance: float, most: int = 16) -> int:
    """The number of drafts a round with which draft-then-verify is fastest."""
    return max(range(1, most + 1), key=lambda drafts: draft_then_verify(pipeline, drafts, acceptance))


def tensor_parallel(whole_ms: float, devices: int, layers: int, all_reduce_ms: float) -> float:
    """Tokens/s where every device has its share of each matrix: two all-reduces a layer, each waited for."""
    return 1000 / (whole_ms / devices + 2 * layers * all_reduce_ms)

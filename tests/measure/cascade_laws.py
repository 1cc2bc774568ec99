"""What a cascade should do, in closed form (PipeSpec, arXiv 2505.01572; the derivation is our own).

A verifier finds drafts waiting, or none. It finds some after a verification whose drafts were all right, and after a
plain step if what was drafted meanwhile begins with the token that the step has made.
"""

from typing import NamedTuple


def window_share(acceptance: float, drafts: float) -> float:
    """Share of a verifier's steps that find drafts, given the share that is right and the mean number waiting."""
    return acceptance / (1 - acceptance ** (drafts + 1) + acceptance) if acceptance > 0 else 0.0


def tokens_per_step(acceptance: float, drafts: float) -> float:
    """Tokens that a step of the verifier yields, with or without drafts, its own token included."""
    share = window_share(acceptance, drafts)
    found = drafts + 1 if acceptance >= 1 else (1 - acceptance ** (drafts + 1)) / (1 - acceptance)
    return 1 - share + share * found


class RateBounds(NamedTuple):
    """Tokens a second at which one of a pair has no time left."""

    verifier: float  # which has to make its steps
    drafter: float  # which has to write what stands, and what does not


def rate_bounds(tokens: float, step_seconds: float, surviving: float, draft_seconds: float) -> RateBounds:
    """From the tokens and seconds of a step of the verifier, tokens that stand for each draft, and the time of one."""
    return RateBounds(tokens / step_seconds, surviving / draft_seconds)

"""How long a frame may take before something must be wrong. A long prompt is none of that.

A stage answers between two frames, so whatever waits for it waits for the longest frame there may be.
"""

from collections.abc import Sequence

from workers.shared.messages import StageTimings

_SLACK = 8.0  # times as long as frames took so far: other processes may come and take the machine
_UNMEASURED = 1 / 64  # of the limit for one token, where no frame has been timed yet


def frame_limit(limit: float, tokens: int, timings: Sequence[StageTimings]) -> float:
    """Seconds that a frame of `tokens` tokens may take through all stages, or between two answers of one of them.

    `limit` is for a stage that has nothing to do. A token of a wide frame takes at most as long as one alone, so the
    mean time a token, whatever the frames were, is no underestimate.
    """
    measured = [stage.busy_ns * 1e-9 / stage.tokens for stage in timings if stage.tokens > 0]
    a_token = _SLACK * max(measured) if len(measured) == len(timings) else _UNMEASURED * limit
    return limit + len(timings) * tokens * a_token

"""What a simulated pipeline is made of, and what comes out. All times in milliseconds."""

from dataclasses import dataclass, replace

from workers.shared.emulation import cost_of_rows


@dataclass(frozen=True)
class Pipeline:
    """One sequence in a pipeline. A frame occupies a stage for `stage_ms` plus `overhead_ms`."""

    stage_ms: tuple[float, ...]  # each stage's layers, one token
    head_ms: float = 0.0  # final norm, LM head and sampler, in the last stage
    overhead_ms: float = 0.0  # of a stage for each frame: hear, receive, send
    hop_ms: float = 0.0  # a hidden state on its way from stage to stage
    control_ms: float = 0.0  # a control message from rank 0 to a stage, and a sample back
    commit_ms: float = 0.0  # rank 0's work for a sample and the announcements that follow
    draft_ms: float = 0.0  # a draft, on rank 0, during which it does nothing else
    row_cost: tuple[float, ...] = ()  # of frames of 1, 2, 4, 8, ... tokens, in frames of one

    def __post_init__(self) -> None:
        if not self.stage_ms or min(self.stage_ms) <= 0:
            raise ValueError("stage_ms: every stage needs a time of more than 0 ms")
        rest = ("head_ms", "overhead_ms", "hop_ms", "control_ms", "commit_ms", "draft_ms")
        for name in rest:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be 0 ms or more")

    @property
    def stages(self) -> int:
        """Number of stages, n."""
        return len(self.stage_ms)

    def service_ms(self, stage: int, rows: int = 1) -> float:
        """How long a live frame of so many tokens occupies a stage."""
        head = self.head_ms if stage == self.stages - 1 else 0.0
        return (self.stage_ms[stage] + head) * cost_of_rows(self.row_cost, rows) + self.overhead_ms

    @property
    def token_ms(self) -> float:
        """One token through an empty pipeline, and the announcement of the next."""
        stages = sum(self.service_ms(stage) for stage in range(self.stages))
        return stages + (self.stages - 1) * self.hop_ms + 2 * self.control_ms + self.commit_ms

    @property
    def single(self) -> "Pipeline":
        """All layers on one device, of the same kind as the stages'."""
        return replace(self, stage_ms=(sum(self.stage_ms),))


@dataclass(frozen=True)
class Prediction:
    """Of decoding one sequence."""

    tokens_per_second: float
    tokens_per_cycle: float
    acceptance: float  # as it came out; 0 where nothing was drafted
    busy: tuple[float, ...]  # share of the time each stage computed, dead frames included


def speed_law(stages: int, acceptance: float, width: int = 1) -> float:
    """Tokens per cycle of speculative pipeline decoding where nothing but the stages takes time.

    A run of tokens between two wrong drafts takes `stages` - 1 cycles to fill the pipeline, and one for each frame of
    `width` tokens. With short frames that is 1 / (1 + (n - 1) (1 - a)); for any, at least 1 / (n (1 - a) + a / m).
    """
    frames = width if acceptance == 1 else (1 - acceptance**width) / (1 - acceptance)  # tokens a frame
    return 1 / ((stages - 1) * (1 - acceptance) + 1 / frames)

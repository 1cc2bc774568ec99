"""Would speculative pipeline decoding help on this machine? Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from speculation.simulate.events import simulate
from speculation.simulate.presets import Machine
from speculation.simulate.rounds import best_drafts, tensor_parallel
from workers.shared.config import CHOSEN

_TOKENS = 1000
_CLOSE = 1.1  # a smaller gain than this is within what the model can be wrong by


@dataclass(frozen=True)
class Advice:
    """Predicted tokens/s of one sequence, and what follows from it."""

    one_device: float | None  # None: the weights do not fit
    none: float
    tensor_parallel: float
    draft_then_verify: float
    drafts: int  # a round
    speculative: tuple[float, ...]  # one an acceptance, one token a frame
    wide: tuple[tuple[int, float], ...]  # one an acceptance: the best number of tokens a frame, and its tokens/s
    verdict: str


def advise(machine: Machine, acceptances: Sequence[float], *, delta: int = 0, tokens: int = _TOKENS) -> Advice | None:
    """Predictions for each of `acceptances`; the verdict is about the first. None where the model does not fit."""
    if not machine.fits:
        return None
    pipeline = machine.pipeline
    none = simulate(pipeline, None, tokens=tokens).tokens_per_second
    speculative = tuple(
        simulate(pipeline, acceptance, delta=delta, tokens=tokens).tokens_per_second for acceptance in acceptances
    )
    wide = tuple(
        max(
            (
                (width, simulate(pipeline, acceptance, delta=delta, width=width, tokens=tokens).tokens_per_second)
                for width in CHOSEN
            ),
            key=lambda found: found[1],
        )
        for acceptance in acceptances
    )
    drafts = best_drafts(pipeline, acceptances[0])
    rounds = simulate(pipeline, acceptances[0], drafts=drafts, tokens=tokens).tokens_per_second
    parallel = tensor_parallel(machine.whole_ms, pipeline.stages, machine.layers, machine.all_reduce_ms)
    one = 1000 / machine.whole_ms if machine.fits_one else None
    others = {"plain pipeline": none, "draft-then-verify": rounds, "tensor parallelism": parallel}
    if one is not None:
        others["one device"] = one
    return Advice(one, none, parallel, rounds, drafts, speculative, wide, _verdict(speculative[0], others, none))


def _verdict(speed: float, others: dict[str, float], none: float) -> str:
    name, best = max(others.items(), key=lambda item: item[1])
    if speed > _CLOSE * best:
        return f"yes: {speed / none:.1f} × the plain pipeline, {speed / best:.1f} × {name}"
    if speed < best / _CLOSE:
        return f"no: {name} is {best / speed:.1f} × as fast"
    return f"hardly: about as fast as {name}"

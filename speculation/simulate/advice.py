"""Would speculative pipeline decoding help on this machine? Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from speculation.decisions.shapes.costs import FrameCosts, held, seconds_per_token
from speculation.simulate.events import RESCUE, simulate
from speculation.simulate.pipeline import Pipeline
from speculation.simulate.presets import Machine
from speculation.simulate.rounds import best_drafts, tensor_parallel
from workers.shared.config import CHOSEN, MEASURED_ROWS
from workers.shared.frames import Shape, shapes_of

_CONTENDERS = 3  # that look best, of which the simulation says which is
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
    wide: tuple[tuple[Shape, float], ...]  # one an acceptance: the best shape of frames, and its tokens/s
    verdict: str


def advise(machine: Machine, acceptances: Sequence[float], *, tokens: int, delta: int = 0) -> Advice | None:
    """Predictions for each of `acceptances`; the verdict is about the first. None where the model does not fit."""
    if not machine.fits:
        return None
    pipeline = machine.pipeline
    none = simulate(pipeline, None, tokens=tokens).tokens_per_second
    speculative = tuple(
        simulate(pipeline, acceptance, delta=delta, tokens=tokens).tokens_per_second for acceptance in acceptances
    )
    wide = tuple(best_shape(pipeline, acceptance, delta=delta, tokens=tokens) for acceptance in acceptances)
    drafts = best_drafts(pipeline, acceptances[0])
    rounds = simulate(pipeline, acceptances[0], drafts=drafts, tokens=tokens).tokens_per_second
    parallel = tensor_parallel(machine.whole_ms, pipeline.stages, machine.layers, machine.all_reduce_ms)
    one = 1000 / machine.whole_ms if machine.fits_one else None
    others = {"plain pipeline": none, "draft-then-verify": rounds, "tensor parallelism": parallel}
    if one is not None:
        others["one device"] = one
    return Advice(one, none, parallel, rounds, drafts, speculative, wide, _verdict(speculative[0], others, none))


def best_shape(
    pipeline: Pipeline, acceptance: float, *, tokens: int, delta: int = 0, rescue: float = RESCUE
) -> tuple[Shape, float]:
    """Tokens a frame and drafts a position that are fastest, and the tokens/s, if deep drafts are right as often.

    Of those that the engine chooses from, and that have no more rows than the pipeline's costs are known for. The law
    by which the engine chooses says which are worth a simulation.
    """
    known = 2 ** (len(pipeline.row_cost) - 1) if pipeline.row_cost else MEASURED_ROWS[-1]
    costs = FrameCosts(pipeline.token_ms / pipeline.stages, pipeline.draft_ms, pipeline.row_cost)

    def expected(shape: Shape) -> float:
        any_of = 1 - (1 - acceptance) * (1 - rescue) ** log2(shape.breadth)
        right = held(pipeline.stages, shape, acceptance, any_of)
        return seconds_per_token(pipeline.stages, costs, shape, right, right, [1.0] * shape.width)

    def simulated(shape: Shape) -> float:
        width, breadth = shape
        got = simulate(pipeline, acceptance, delta=delta, width=width, breadth=breadth, rescue=rescue, tokens=tokens)
        return got.tokens_per_second

    shapes = shapes_of(CHOSEN, CHOSEN, min(known, MEASURED_ROWS[-1]))
    promising = {shapes[0], *sorted(shapes, key=expected)[:_CONTENDERS]}
    contenders = sorted(promising, key=lambda shape: shape.rows)  # of equals, the least
    return max(((shape, simulated(shape)) for shape in contenders), key=lambda found: found[1])


def _verdict(speed: float, others: dict[str, float], none: float) -> str:
    name, best = max(others.items(), key=lambda item: item[1])
    if speed > _CLOSE * best:
        return f"yes: {speed / none:.1f} × the plain pipeline, {speed / best:.1f} × {name}"
    if speed < best / _CLOSE:
        return f"no: {name} is {best / speed:.1f} × as fast"
    return f"hardly: about as fast as {name}"

"""`python -m speculation.simulate ...`: what `echelon simulate` runs."""

import os
import sys
from collections.abc import Sequence
from itertools import product
from typing import Annotated

from msgspec import Struct

from speculation.simulate.advice import advise, best_shape
from speculation.simulate.events import RESCUE, simulate
from speculation.simulate.pipeline import Pipeline
from speculation.simulate.presets import Presets, load_presets, machine, sources
from speculation.simulate.rounds import best_drafts, tokens_per_cycle
from workers.shared.emulation import Cost
from workers.shared.errors import ConfigError
from workers.shared.frames import Shape
from workers.shared.options.declared import AtLeastOne, Milliseconds, NotNegative, Share, about
from workers.shared.options.sources import Program, read

_PRESETS, _OWN = "Presets", "A pipeline of given times"


class SimulateOptions(Struct, frozen=True, kw_only=True):
    """The command line."""

    box: Annotated[tuple[str, ...], about(_PRESETS, "Preset boxes, such as 4x3090-x4", default="all")] = ()
    model: Annotated[tuple[str, ...], about(_PRESETS, "Preset models: 8b,27b,70b", default="all")] = ()
    weights: Annotated[tuple[str, ...], about(_PRESETS, "4bit,16bit", default="both")] = ()
    acceptance: Annotated[tuple[Share, ...], about(_PRESETS, "Of drafts")] = (0.65, 0.8)
    delta: Annotated[NotNegative, about(_PRESETS, "Frames in flight beyond one a stage")] = 0
    stage_ms: Annotated[
        tuple[Milliseconds, ...],
        about(_OWN, "Each stage's time for a token, such as 5,5,5,6: predicts that pipeline instead of presets"),
    ] = ()
    head_ms: Annotated[Milliseconds, about(_OWN, "Final norm, head and sampler, in the last stage")] = 0.0
    overhead_ms: Annotated[Milliseconds, about(_OWN, "A stage's time for a frame beside computing")] = 0.0
    hop_ms: Annotated[Milliseconds, about(_OWN, "A hidden state from stage to stage")] = 0.0
    control_ms: Annotated[Milliseconds, about(_OWN, "A control message one way")] = 0.0
    commit_ms: Annotated[Milliseconds, about(_OWN, "The speculation rank's work for a sample")] = 0.0
    draft_ms: Annotated[Milliseconds, about(_OWN, "A draft")] = 0.0
    tokens_per_frame: Annotated[tuple[AtLeastOne, ...], about(_OWN, "Tokens a frame; each is predicted")] = (1, 2, 4, 8)
    tree_width: Annotated[tuple[AtLeastOne, ...], about(_OWN, "Drafts for one position; each is predicted")] = (1,)
    rescue: Annotated[
        Share, about(_OWN, "The share of wrong drafts that twice as many candidates would have made right")
    ] = RESCUE
    row_cost: Annotated[
        tuple[Cost, ...],
        about(_OWN, "A stage's time for a frame of 1, 2, 4, 8, ... tokens, in times of one", default="all alike"),
    ] = ()
    tokens: Annotated[AtLeastOne, about(_OWN, "How many are simulated, for each figure")] = 1000


SIMULATE_PROGRAM = Program(
    "echelon simulate",
    "Predicts tokens/s on hardware that is not at hand, for common boxes and models or, with --stage-ms, for a "
    "pipeline of given times.",
    SimulateOptions,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 for bad input."""
    try:
        options = read(SIMULATE_PROGRAM, sys.argv[1:] if arguments is None else arguments, os.environ)
        if not options.acceptance:
            raise ConfigError("--acceptance: give probabilities, such as 0.65,0.8")
        text = _own_pipeline(options) if options.stage_ms else _presets(load_presets(), options)
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"echelon simulate: {error}\n")
        return 2
    sys.stdout.write(text)
    return 0


def _own_pipeline(options: SimulateOptions) -> str:
    pipeline = Pipeline(
        stage_ms=options.stage_ms,
        head_ms=options.head_ms,
        overhead_ms=options.overhead_ms,
        hop_ms=options.hop_ms,
        control_ms=options.control_ms,
        commit_ms=options.commit_ms,
        draft_ms=options.draft_ms,
        row_cost=options.row_cost,
    )
    lengths = options.tokens
    none, single = (simulate(one, None, tokens=lengths) for one in (pipeline, pipeline.single))
    found = [("none", "", 1.0, none, 1.0), ("single", "", 1.0, single, 1.0)]
    stages = pipeline.stages
    for acceptance in options.acceptance:
        for width, breadth in product(options.tokens_per_frame, options.tree_width):
            got = simulate(
                pipeline,
                acceptance,
                delta=options.delta,
                width=width,
                breadth=breadth,
                rescue=options.rescue,
                tokens=lengths,
            )
            law = stages * tokens_per_cycle(stages, got.acceptance, width=width)
            name = f"pipelined, m={width}" + (f", W={breadth}" if breadth > 1 else "")
            found.append((name, f"{acceptance:g}", stages * got.tokens_per_cycle, got, law))
        drafts = best_drafts(pipeline, acceptance)
        got = simulate(pipeline, acceptance, drafts=drafts, tokens=lengths)
        law = stages * tokens_per_cycle(stages, got.acceptance, drafts)
        found.append((f"dtv, k={drafts}", f"{acceptance:g}", stages * got.tokens_per_cycle, got, law))
    lines = [
        "Predicted. `pipelined`: m tokens a frame and a frame in every stage, whatever drafts (ngram, pdm, model).",
        "W: drafts for one position; acceptance is that of the first of them.",
        "`dtv`: draft-then-verify with the best number of drafts, k. The law is E if nothing but stages took time;",
        "with branches it is that of a chain whose drafts are right as often as one of W, which is an upper bound.",
        "",
        _line("method", "acceptance", "tok/s", "× none", "× single", "E", "law"),
        _line(*["---"] * 7),
    ]
    for method, at, length, got, law in found:
        speed = got.tokens_per_second
        ratios = (f"{speed / baseline.tokens_per_second:.2f}" for baseline in (none, single))
        lines.append(_line(method, at, f"{speed:.1f}", *ratios, f"{length:.2f}", f"{law:.2f}"))
    lines.append("")
    for acceptance in options.acceptance:
        shape, speed = best_shape(
            pipeline, acceptance, delta=options.delta, rescue=options.rescue, tokens=options.tokens
        )
        lines.append(
            f"Fastest at acceptance {acceptance:g}, if drafts that look further ahead are right as often: "
            f"--tokens-per-frame {shape.width} --tree-width {shape.breadth}, {speed:.1f} tok/s."
        )
    return "\n".join(lines) + "\n"


def _presets(presets: Presets, options: SimulateOptions) -> str:
    boxes = options.box or list(presets.boxes)
    models = options.model or list(presets.models)
    weights = options.weights or list(presets.weights)
    acceptances = options.acceptance
    spd = [f"speculative, a={acceptance:g}" for acceptance in acceptances]
    header = ("box", "model", "one device", "plain pipeline", "tensor parallel", "draft-then-verify", *spd)
    lines = [
        "Predicted tokens/s of one short sequence, from the figures listed below with their sources.",
        f"The verdict is about the first acceptance, {acceptances[0]:g}, which draft-then-verify is given too.",
        "In brackets the best tokens a frame, m, and drafts a position, W, if drafts further ahead were as good.",
        "",
        _line(*header, "would it help?"),
        _line(*["---"] * (len(header) + 1)),
    ]
    for box in boxes:
        for model in models:
            for kind in weights:
                made = machine(presets, box, model, kind)
                advice = advise(made, acceptances, tokens=options.tokens, delta=options.delta)
                name = f"{model}, {kind}"
                if advice is None:
                    lines.append(_line(box, name, *["–"] * (len(header) - 2), "no: the weights do not fit"))
                    continue
                lines.append(
                    _line(
                        box,
                        name,
                        "–" if advice.one_device is None else f"{advice.one_device:.0f}",
                        f"{advice.none:.0f}",
                        f"{advice.tensor_parallel:.0f}",
                        f"{advice.draft_then_verify:.0f} (k={advice.drafts})",
                        *map(_both, advice.speculative, advice.wide),
                        advice.verdict,
                    )
                )
    lines += ["", "What others have published of tensor parallelism, one sequence:", ""]
    lines += [_line("machine and model", "one device", "tensor parallel", "source"), _line(*["---"] * 4)]
    for figure in presets.public_tensor_parallel:
        lines.append(_line(figure.what, f"{figure.one_device:.0f}", f"{figure.tensor_parallel:.0f}", figure.source))
    lines += ["", "What the predictions are made from (all of it in speculation/simulate/presets.json):", ""]
    lines += [f"* {name}: {source}" for name, source in sources(presets, boxes, models, weights)]
    return "\n".join(lines) + "\n"


def _both(speed: float, wide: tuple[Shape, float]) -> str:
    shape, best = wide
    return f"{speed:.0f} (m={shape.width}, W={shape.breadth}: {best:.0f})" if shape.rows > 1 else f"{speed:.0f}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())

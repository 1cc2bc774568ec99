"""`python -m tests.measure.cascade`: a cascade at the published ratios of times, asynchronous, synchronous and plain.

The target is the default model, the smaller ones are copies of it without some of their layers, and all passes take
the times of PipeSpec's 70B, 8B and 1B models, or a share of them, asleep (arXiv 2505.01572: 123.7, 22.5 and 11.7 ms a
token). So speeds are emulated; what is right and what is wrong is not. One server after the other answers the same
prompts; prints a row for each, then what the closed form says of each pair. On a machine that does nothing else.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
from msgspec.structs import replace

from speculation.bench.configuration import BenchSettings, Contender, devices, serve_arguments
from tests.e2e.serving import Serving, serving
from tests.measure.always_wrong import PROMPTS, answer_seconds
from tests.measure.cascade_laws import rate_bounds, tokens_per_step, window_share
from tests.measure.pruned_model import write_pruned_model
from workers.prepare.prepare import prepare
from workers.shared.cascade.figures import ModelFigures
from workers.shared.emulation import Emulation
from workers.shared.messages import Status
from workers.shared.options.engine import DrafterOptions, EngineOptions

_SETTLED = 3.0  # seconds in which all figures arrive: those of stages and of models are told once a second
_TARGET_MS, _MIDDLE_MS, _SMALL_MS = 123.7, 22.5, 11.7
# Method of the bench, its stages and the most tokens of a frame: of a round, or of each of several in flight.
_ROWS = (
    ("none", 1, 0),
    ("cascade-rounds", 1, 32),
    ("cascade-rounds without the middle", 1, 32),
    ("cascade-sync", 1, 8),
    ("cascade-sync without the middle", 1, 8),
    ("none", 2, 0),
    ("cascade", 2, 8),
)


class Measured(NamedTuple):
    """What a server did while it was measured."""

    seconds: float
    tokens: int
    before: Status
    after: Status


def main() -> None:
    """Writes the smaller models, and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--scale", type=float, default=2.0, help="times the published milliseconds")
    parser.add_argument("--middle", default="12", help="layers that the middle model lacks")
    parser.add_argument("--small", default="12,14,17", help="layers that the small model lacks")
    parser.add_argument("--row-cost", default="1,1.03,1.05,1.08,1.1,1.15", help="see --emulate-row-cost")
    given = parser.parse_args()
    costs = tuple(map(float, given.row_cost.split(",")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = prepare(given.model)
        for model in ("small", "middle"):
            write_pruned_model(source, folder / model, [int(layer) for layer in getattr(given, model).split(",")])
        plain: dict[int, float] = {}
        print("| method | stages | devices | ms/token | × plain | accepted | tokens a step |", flush=True)
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
        pairs = []
        for number, (row, stages, width) in enumerate(_ROWS):
            method, _, _ = row.partition(" without the middle")
            models = ("small",) if row.endswith("middle") else ("small", "middle")
            times = tuple(given.scale * ms for ms in ((_SMALL_MS,) if len(models) == 1 else (_SMALL_MS, _MIDDLE_MS)))
            emulate = Emulation(stage_ms=given.scale * _TARGET_MS / stages, cascade_ms=times, row_cost=costs)
            drafter = DrafterOptions(cascade=tuple(str(folder / model) for model in models), always=True)
            engine = EngineOptions(drafter=drafter, emulate=emulate, max_model_len=1024, max_num_seqs=1)
            contender = Contender(method, stages)
            streamed = contender.how.drafter == "cascade" and not contender.how.rounds
            engine = replace(engine, tokens_per_frame=width if streamed else 1)
            settings = BenchSettings(str(source), given.tokens, num_speculative_tokens=width or 1, engine=engine)
            made = folder / str(number)
            made.mkdir()
            arguments = serve_arguments(contender, settings, None)
            arguments[arguments.index("bench")] = "measured"  # as the model is asked for
            with serving(made, *arguments) as server:
                measured = _measure(server, given.tokens, given.prompts)
            each = 1000 * measured.seconds / (measured.tokens - given.prompts)
            plain.setdefault(stages, each)
            counts, was = measured.after.stats.counts, measured.before.stats.counts
            accepted = counts.accepted - was.accepted
            judged = accepted + counts.rejected - was.rejected
            steps = _steps(measured)
            print(
                f"| {row} | {stages} | {devices(contender, settings)} | {each:.1f} | {plain[stages] / each:.2f} "
                f"| {accepted / judged if judged else 0:.2f} | {measured.tokens / steps:.2f} |",
                flush=True,
            )
            if method != "none":
                pairs.append((f"{row}, {stages} stages", measured, emulate))
        for title, measured, emulate in pairs:
            print(f"\n{title}")
            for line in _pairs(measured, emulate):
                print(f"* {line}")


def _measure(server: Serving, tokens: int, prompts: int) -> Measured:
    answer_seconds(server, PROMPTS[-1], 8)
    time.sleep(_SETTLED)
    before = _status(server)
    seconds = sum(answer_seconds(server, prompt, tokens) for prompt in PROMPTS[:prompts])
    time.sleep(_SETTLED)
    return Measured(seconds, tokens * prompts, before, _status(server))


def _status(server: Serving) -> Status:
    return msgspec.json.decode(httpx.get(f"{server.url}/status", timeout=30).raise_for_status().content, type=Status)


def _steps(measured: Measured) -> int:
    """Frames that the target has computed; a prompt is one of them."""
    return measured.after.stages[-1].frames - measured.before.stages[-1].frames


def _pairs(measured: Measured, emulate: Emulation) -> list[str]:
    """A line for each verifier: what it did, and what it should have done."""
    lines = []
    was = {figures.name: figures for figures in measured.before.models}
    models = [_since(was.get(figures.name), figures) for figures in measured.after.models]
    seconds = [emulate.of_cascade(number) / 1000 for number in range(len(models))]
    for number, figures in enumerate(models):
        busy = f"{figures.name}: busy {figures.busy:.2f}"
        steps = figures.verifications + figures.plain
        if number == 0 or not figures.judged or not figures.verifications:
            lines.append(f"{busy}, {figures.written} tokens written, {figures.undone} undone")
            continue
        share, drafts = figures.verifications / steps, figures.waiting / figures.verifications
        below, written = models[number - 1], figures.written / steps
        surviving = figures.written / below.written if below.written else 0.0
        lines.append(
            f"{busy}; "
            + _against(share, written, figures.accepted / figures.judged, drafts)
            + _bounds(written, seconds[number], surviving, seconds[number - 1])
        )
    counts, before = measured.after.stats.counts, measured.before.stats.counts
    stage, earlier = measured.after.stages[-1], measured.before.stages[-1]
    accepted, rejected = counts.accepted - before.accepted, counts.rejected - before.rejected
    windows = counts.judged_at[0] - before.judged_at[0]  # frames that found drafts: each has one of depth 1
    steps, each = _steps(measured), measured.tokens / _steps(measured)
    busy_ns, total_ns = stage.busy_ns - earlier.busy_ns, stage.total_ns - earlier.total_ns
    if accepted + rejected and windows:
        drafted = counts.drafted - before.drafted
        surviving = measured.tokens / models[-1].written if models and models[-1].written else 0.0
        lines.append(
            f"target: busy {busy_ns / total_ns:.2f}; "
            + _against(min(1.0, windows / steps), each, accepted / (accepted + rejected), drafted / windows)
            + _bounds(each, emulate.stage_ms / 1000, surviving, seconds[-1])
        )
    return lines


def _against(share: float, tokens: float, acceptance: float, drafts: float) -> str:
    return (
        f"accepted {acceptance:.2f}, {drafts:.1f} drafts waiting; steps with drafts {share:.2f}, by the closed form "
        f"{window_share(acceptance, drafts):.2f}; tokens a step {tokens:.2f}, by the closed form "
        f"{tokens_per_step(acceptance, drafts):.2f}"
    )


def _bounds(tokens: float, step: float, surviving: float, draft: float) -> str:
    bounds = rate_bounds(tokens, step, surviving, draft)
    return f"; {bounds.verifier:.1f} tokens/s would keep the verifier busy, {bounds.drafter:.1f} the drafter"


def _since(before: ModelFigures | None, after: ModelFigures) -> ModelFigures:
    if before is None:
        return after
    numbers = {
        name: getattr(after, name) - getattr(before, name)
        for name in ModelFigures.__struct_fields__
        if isinstance(getattr(after, name), int)
    }
    return replace(after, **numbers)


if __name__ == "__main__":
    main()

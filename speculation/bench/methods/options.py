"""Options of `python -m speculation.bench.methods`."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from speculation.bench.options import Temperature
from workers.shared.emulation import Cost
from workers.shared.options.declared import AtLeastOne, NotNegative, about
from workers.shared.options.sources import Program

_METHODS = "Methods"


class MethodsOptions(Struct, frozen=True, kw_only=True):
    """The command line."""

    model: Annotated[str, about(_METHODS, "As for `echelon serve`", place=True)] = "default"
    prompts: Annotated[Path, about(_METHODS, "Folder; every .jsonl file in it is a data set", metavar="DIR")]
    out: Annotated[Path, about(_METHODS, "Folder for raw measurements and logs", metavar="DIR")]
    page: Annotated[Path, about(_METHODS, "Where the page is written", metavar="FILE")] = Path("docs/methods.md")
    methods: Annotated[tuple[str, ...], about(_METHODS, "Some of echelon bench's methods", default="all")] = ()
    stages: Annotated[tuple[AtLeastOne, ...], about(_METHODS, "Of emulated pipelines")] = (4, 8, 2)
    wall_stages: Annotated[AtLeastOne, about(_METHODS, "Of the pipeline whose real time is taken")] = 2
    temperature: Annotated[tuple[Temperature, ...], about(_METHODS, "Such as 0,1")] = (0.0, 1.0)
    limit: Annotated[AtLeastOne, about(_METHODS, "Prompts a data set, the first ones")] = 1
    max_tokens: Annotated[Annotated[int, Meta(ge=2)], about(_METHODS, "Of an answer")] = 16
    wall_tokens: Annotated[Annotated[int, Meta(ge=2)], about(_METHODS, "Of an answer whose real time is taken")] = 64
    repeats: Annotated[AtLeastOne, about(_METHODS, "Of what real time is taken of")] = 1
    drafts: Annotated[AtLeastOne, about(_METHODS, "Drafts a round, K")] = 4
    sweep: Annotated[
        tuple[AtLeastOne, ...],
        about(
            _METHODS,
            "Emulated: also measure rounds of so many drafts, frames of so many tokens and so many drafts a position, "
            "such as 2,8",
            default="none",
        ),
    ] = ()
    row_cost: Annotated[
        tuple[Cost, ...], about(_METHODS, "Emulated: a stage's time for 1, 2, 4, 8, ... tokens, in times of one")
    ] = (1.0, 1.06, 1.08, 1.1, 1.22, 1.28, 1.35)
    draft_module: Annotated[
        str | None,
        about(_METHODS, "For pdm", default="the one that comes with Echelon for the default model", metavar="PATH"),
    ] = None
    draft_model: Annotated[str | None, about(_METHODS, "For the methods with a draft model", metavar="MODEL")] = None
    cascade: Annotated[
        tuple[str, ...], about(_METHODS, "For the methods with a cascade, the smallest first", metavar="MODEL")
    ] = ()
    checkpoint: Annotated[
        tuple[str, ...], about(_METHODS, "Of other drafters, such as exit=DIR", metavar="DRAFTER=PATH")
    ] = ()
    minutes: Annotated[
        NotNegative | None,
        about(
            _METHODS, "Stop measuring after so long, and write the page; 0: measure nothing", default="when all is done"
        ),
    ] = None


METHODS_PROGRAM = Program(
    "python -m speculation.bench.methods",
    "Measures all methods on the same workers, in real time and with emulated stages, and writes the page that "
    "compares them. Run the same command again to go on after an interruption.",
    MethodsOptions,
)

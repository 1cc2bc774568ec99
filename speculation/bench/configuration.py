"""What is compared, and how each contender is started. Pure."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from workers.shared.drafters import DRAFTERS, DrafterName, DrafterRow
from workers.shared.errors import ConfigError
from workers.shared.options.declared import flags, given, within
from workers.shared.options.engine import EngineOptions

BENCH = "Bench"
SEVERAL = 4  # tokens a frame, or drafts for one position, of methods that have several, unless others are tried


class Method(NamedTuple):
    """A drafter and a frame policy on the same workers, or a baseline."""

    drafter: DrafterName | None  # of `echelon serve`; None: served by something else
    rounds: bool = False  # draft-then-verify: a few drafts, one frame with all of them, its sample
    one_device: bool = False
    chooses: bool = False  # the controller decides, also where the others are to draft always
    waits: bool = False  # of a cascade: one model works at a time, on as many drafts as a round has
    direct: bool = False  # of a cascade: the smallest model alone, without those between it and the target
    width: Literal["several", "auto"] | None = None  # tokens a frame of its own; None: as all have been asked for
    tree: bool = False  # several drafts for one position, whatever all have been asked for

    @property
    def several(self) -> bool:
        """Whether its frames hold several tokens whatever all have been asked for."""
        return self.rounds or self.width is not None or self.tree

    @property
    def number(self) -> Literal["K", "m", "W", ""]:
        """What it has a number of that may be tried: drafts a round, tokens a frame or drafts for one position."""
        if self.rounds:
            return "K"
        return "m" if self.width == "several" else "W" if self.tree else ""


SINGLE = "single"  # all layers in one stage process, no speculation
HUGGING_FACE = "hf"  # Hugging Face `generate`
LLAMA_CPP = "llama.cpp"  # its server, where it is installed
NONE = "none"  # the pipeline without speculation
METHODS = {
    NONE: Method("none"),
    "ngram": Method("ngram"),
    "pdm": Method("pdm"),
    "pdm+ngram": Method("pdm+ngram"),
    "exit": Method("exit"),
    "chosen": Method("pdm+ngram", chooses=True),
    "wide-ngram": Method("ngram", width="several"),
    "wide-pdm": Method("pdm", width="several"),
    "best": Method("pdm+ngram", chooses=True, width="auto"),
    "model": Method("model"),
    "dtv-ngram": Method("ngram", rounds=True),
    "dtv-model": Method("model", rounds=True),
    "tree-ngram": Method("ngram", tree=True),
    "tree-model": Method("model", tree=True),
    # Draft heads: a round of drafts in one frame, as they are published; and a frame in every stage, which is ours.
    "dtv-eagle3": Method("eagle3", rounds=True),
    "dtv-peagle": Method("peagle", rounds=True),
    "dtv-mtp": Method("mtp", rounds=True),
    "dtv-tree-eagle3": Method("eagle3", rounds=True, tree=True),
    "eagle3": Method("eagle3"),
    "peagle": Method("peagle"),
    "mtp": Method("mtp"),
    "tree-eagle3": Method("eagle3", tree=True),
    "cascade": Method("cascade"),  # as many frames in flight as there are stages
    "cascade-rounds": Method("cascade", rounds=True),  # PipeSpec: one frame in flight, with all drafts that wait
    "cascade-sync": Method("cascade", rounds=True, waits=True),
    "cascade-direct": Method("cascade", direct=True),
    "scripted": Method("scripted"),  # rehearsal
    "dtv-scripted": Method("scripted", rounds=True),
    SINGLE: Method("none", one_device=True),
    HUGGING_FACE: Method(None, one_device=True),
    LLAMA_CPP: Method(None, one_device=True),
}


def _methods(are: Callable[[DrafterRow], bool]) -> tuple[str, ...]:
    return tuple(name for name, method in METHODS.items() if method.drafter and are(DRAFTERS[method.drafter]))


USES_MODULE = _methods(lambda row: row.needs_module)
USES_MODEL = _methods(lambda row: row.needs_model)
USES_CASCADE = _methods(lambda row: row.needs_cascade)
REHEARSALS = _methods(lambda row: row.needs_script)


# What a bench chooses for each contender is none of its engine's options.
MeasuredEngine = Annotated[
    EngineOptions, within(without=("stages", "split", "drafter", "num_speculative_tokens", "script"))
]


class BenchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides the numbers besides contender, temperature and data set. All cells of a folder share it."""

    model: str
    max_tokens: int
    limit: int | None = None  # prompts a data set; None: all
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    num_speculative_tokens: int = 4  # drafts a frame, for draft-then-verify
    several: int = SEVERAL  # tokens a frame, or drafts for one position, of methods that have several of their own
    ignore_eos: bool = False  # every answer then has `max_tokens` tokens
    module: str | None = None  # SHA-256 of the draft module's weights
    checkpoints: dict[str, str] = {}  # drafters that have another one: SHA-256 of its weights
    engine: EngineOptions = EngineOptions()

    def described(self) -> dict[str, Any]:
        """Everything by name; of the engine what is not as usual."""
        own = {name: getattr(self, name) for name in self.__struct_fields__ if name != "engine"}
        return own | given(self.engine)


class Contender(msgspec.Struct, frozen=True, order=True):
    """One way of serving the model."""

    method: str
    stages: int

    def __str__(self) -> str:
        return self.method if self.how.one_device else f"{self.method}, n={self.stages}"

    @property
    def how(self) -> Method:
        """What its method is made of."""
        return METHODS[self.method]


def contenders(methods: tuple[str, ...], stages: tuple[int, ...]) -> list[list[Contender]]:
    """The contenders that run side by side, a group for each number of stages.

    Methods of one device do not depend on the number of stages: they run once, beside the first group.
    Raises `ConfigError` naming the value that is wrong.
    """
    unknown = [method for method in methods if method not in METHODS]
    if unknown or not methods:
        raise ConfigError(f"--methods {','.join(unknown)}: choose from {', '.join(METHODS)}")
    if not stages or min(stages) < 1:
        raise ConfigError("--stages: give numbers of at least 1, such as 2,3,5")
    asked = dict.fromkeys(methods)
    piped = [method for method in asked if not METHODS[method].one_device]
    alone = [Contender(method, 1) for method in asked if METHODS[method].one_device]
    groups = [[Contender(method, count) for method in piped] for count in dict.fromkeys(stages)] if piped else [[]]
    groups[0] = groups[0] + alone
    return groups


def check(settings: BenchSettings, methods: tuple[str, ...]) -> None:
    """Raises `ConfigError` where an option is missing for a method, or is for none of them."""
    drafter = settings.engine.drafter
    if any(method in REHEARSALS for method in methods) != (drafter.scripted_acceptance is not None):
        raise ConfigError(
            f"--methods {' or '.join(REHEARSALS)} and --scripted-acceptance P belong together; give both or neither"
        )
    drafters = {METHODS[method].drafter for method in methods}
    if idle := [name for name in settings.checkpoints if name not in drafters]:
        raise ConfigError(f"--checkpoint {idle[0]}=...: none of the --methods drafts with it")
    with_module = [method for method in methods if method in USES_MODULE]
    if settings.module is not None and all(METHODS[method].drafter in settings.checkpoints for method in with_module):
        raise ConfigError(f"--draft-module is for --methods {' or '.join(USES_MODULE)} without a --checkpoint")
    with_model = [m for m in methods if m in USES_MODEL and METHODS[m].drafter not in settings.checkpoints]
    if bool(with_model) != (drafter.model is not None):
        raise ConfigError(f"--methods {' or '.join(USES_MODEL)} and --draft-model PATH belong together")
    if len(drafting := {str(METHODS[method].drafter) for method in with_model}) > 1:
        raise ConfigError(
            f"--draft-model PATH is for one of {', '.join(sorted(drafting))}; give a --checkpoint for others"
        )
    if any(method in USES_CASCADE for method in methods) != bool(drafter.cascade):
        raise ConfigError(f"--methods {' or '.join(USES_CASCADE)} and --cascade SMALL[,MIDDLE...] belong together")


def serve_arguments(contender: Contender, settings: BenchSettings, checkpoint: str | None) -> list[str]:
    """Arguments of `echelon serve`, from MODEL on, that start `contender`.

    `checkpoint` is the path of what its drafter has: a draft module, an exit head, or a model of its own.
    """
    method, how, asked = contender.method, contender.how, settings.engine
    drafts = settings.num_speculative_tokens
    drafter = replace(
        asked.drafter,
        name=str(how.drafter),
        module=checkpoint if method in USES_MODULE else None,
        model=checkpoint or asked.drafter.model if method in USES_MODEL else None,
        scripted_acceptance=asked.drafter.scripted_acceptance if method in REHEARSALS else None,
        num_speculative_tokens=drafts if how.rounds else 0,
        cascade=_cascade(contender, settings),
        cascade_lookahead=drafts if how.waits else asked.drafter.cascade_lookahead,
        cascade_lead=drafts if how.waits else asked.drafter.cascade_lead,
        always=asked.drafter.always and not (how.one_device or how.chooses),
    )
    engine = replace(
        asked,
        stages=contender.stages,
        delta=0 if how.rounds else asked.delta,
        tokens_per_frame=_width(how, settings),
        tree_width=_tree_width(how, settings),
        device=_device(contender, asked),
        drafter=drafter,
    )
    return [settings.model, "--served-model-name", "bench", *flags(engine)]


def _cascade(contender: Contender, settings: BenchSettings) -> tuple[str, ...]:
    """The models that a contender has below the target, the smallest first."""
    if contender.method not in USES_CASCADE:
        return ()
    models = settings.engine.drafter.cascade
    return models[:1] if contender.how.direct else models


def _width(how: Method, settings: BenchSettings) -> int | Literal["auto"]:
    """Tokens a frame, of what can fill frames of several."""
    if how.drafter is None or how.drafter == NONE or how.rounds or not DRAFTERS[how.drafter].fills_frames:
        return 1
    if how.width is None:
        return settings.engine.tokens_per_frame
    return settings.several if how.width == "several" else how.width


def _tree_width(how: Method, settings: BenchSettings) -> int | Literal["auto"]:
    """Drafts for one position, of what can draft behind several; chosen with frames in every stage alone."""
    if how.drafter is None or how.drafter == NONE or not DRAFTERS[how.drafter].branches:
        return 1
    if how.tree:
        return SEVERAL if how.rounds else settings.several
    asked = settings.engine.tree_width
    return 1 if how.rounds and asked == "auto" else asked


def gpus(contender: Contender, settings: BenchSettings) -> tuple[int, ...]:
    """Indices of the GPUs that a contender works on; none on CPUs."""
    names = _device(contender, settings.engine)
    if names == ("cpu",):
        return ()
    if names == ("cuda",):
        return tuple(range(1 if settings.engine.transport == "inprocess" else contender.stages))
    return tuple(sorted({int(name.partition(":")[2]) for name in names}))


def has_network(method: Method) -> bool:
    """Whether it drafts with one, which takes a device, or a part of one."""
    row = None if method.drafter is None else DRAFTERS[method.drafter]
    return row is not None and row.computes


def devices(contender: Contender, settings: BenchSettings) -> int:
    """How many devices a contender takes: GPUs, or processes with layers of the target or of a drafter.

    On GPUs a drafter shares the first stage's; models of a cascade have devices of their own where they were given any.
    """
    cascade = _cascade(contender, settings)
    own = len({*settings.engine.drafter.cascade_device[: len(cascade)]})
    on_gpus = len(gpus(contender, settings))
    return on_gpus + own if on_gpus else contender.stages + has_network(contender.how) + len(cascade)


def _device(contender: Contender, engine: EngineOptions) -> tuple[str, ...]:
    """One device takes the first of a list."""
    return engine.device[:1] if contender.how.one_device else engine.device

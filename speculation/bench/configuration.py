"""What is compared, and how each contender is started. Pure."""

from typing import NamedTuple

import msgspec
from msgspec.structs import asdict

from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError


class Method(NamedTuple):
    """A drafter and a frame policy on the same workers, or a baseline."""

    drafter: str | None  # of `echelon serve`; None: served by something else
    rounds: bool = False  # draft-then-verify: a few drafts, one frame with all of them, its sample
    one_device: bool = False


SINGLE = "single"  # all layers in one stage process, no speculation
HUGGING_FACE = "hf"  # Hugging Face `generate`
NONE = "none"  # the pipeline without speculation
METHODS = {
    NONE: Method("none"),
    "ngram": Method("ngram"),
    "pdm": Method("pdm"),
    "pdm+ngram": Method("pdm+ngram"),
    "model": Method("model"),
    "dtv-ngram": Method("ngram", rounds=True),
    "dtv-model": Method("model", rounds=True),
    "scripted": Method("scripted"),  # rehearsal
    "dtv-scripted": Method("scripted", rounds=True),
    SINGLE: Method("none", one_device=True),
    HUGGING_FACE: Method(None, one_device=True),
}
USES_MODULE = ("pdm", "pdm+ngram")
USES_MODEL = ("model", "dtv-model")
REHEARSALS = ("scripted", "dtv-scripted")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides the numbers besides contender, temperature and data set. All cells of a folder share it."""

    model: str
    max_tokens: int
    limit: int | None = None  # prompts a data set; None: all
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_model_len: int = 2048
    prefill_chunk: int = 128
    threads: int = 1  # of a stage, and of Hugging Face
    device: str = "cpu"
    dtype: str = "auto"
    transport: str = "auto"
    delta: int = 0
    num_speculative_tokens: int = 4  # drafts a frame, for draft-then-verify
    emulate: Emulation = Emulation()
    always_draft: bool = False
    ignore_eos: bool = False  # every answer then has `max_tokens` tokens
    scripted_acceptance: float | None = None
    hollow_stages: bool = False  # rehearsal: stages take their emulated time and compute nothing
    module: str | None = None  # SHA-256 of the draft module's weights
    draft_model: str | None = None


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


def check(settings: Settings, methods: tuple[str, ...], *, has_module: bool) -> None:
    """Raises `ConfigError` where an option is missing for a method, or is for none of them."""
    if settings.max_tokens < 2:
        raise ConfigError("--max-tokens must be at least 2: the time after the first token is what is measured")
    if settings.limit is not None and settings.limit < 1:
        raise ConfigError("--limit must be at least 1 prompt a data set")
    if settings.num_speculative_tokens < 1:
        raise ConfigError("--num-speculative-tokens must be at least 1 draft a frame")
    settings.emulate.check()
    if any(method in REHEARSALS for method in methods) != (settings.scripted_acceptance is not None):
        raise ConfigError(
            f"--methods {' or '.join(REHEARSALS)} and --scripted-acceptance P belong together; give both or neither"
        )
    if has_module and not any(method in USES_MODULE for method in methods):
        raise ConfigError(f"--draft-module is for --methods {' or '.join(USES_MODULE)}")
    if any(method in USES_MODEL for method in methods) != (settings.draft_model is not None):
        raise ConfigError(f"--methods {' or '.join(USES_MODEL)} and --draft-model PATH belong together")


def serve_arguments(contender: Contender, settings: Settings, module: str | None) -> list[str]:
    """Arguments of `echelon serve`, from MODEL on, that start `contender`; `module` is the draft module's path."""
    method, how = contender.method, contender.how
    arguments = [settings.model, "--served-model-name", "bench", "--stages", str(contender.stages)]
    arguments += ["--drafter", str(how.drafter)]
    if module is not None and method in USES_MODULE:
        arguments += ["--draft-module", module]
    if settings.draft_model is not None and method in USES_MODEL:
        arguments += ["--draft-model", settings.draft_model]
    if method in REHEARSALS:
        arguments += ["--scripted-acceptance", str(settings.scripted_acceptance)]
    if how.rounds:
        arguments += ["--num-speculative-tokens", str(settings.num_speculative_tokens)]
    else:
        arguments += ["--delta", str(settings.delta)]
    arguments += ["--max-model-len", str(settings.max_model_len), "--threads", str(settings.threads)]
    arguments += ["--prefill-chunk", str(settings.prefill_chunk), "--device", _device(contender, settings.device)]
    arguments += ["--dtype", settings.dtype, "--transport", settings.transport]
    for name, ms in asdict(settings.emulate).items():
        arguments += [f"--emulate-{name.replace('_', '-')}", str(ms)]
    if settings.hollow_stages:
        arguments.append("--hollow-stages")
    if settings.always_draft and not how.one_device:
        arguments.append("--always-draft")
    return arguments


def gpus(contender: Contender, settings: Settings) -> tuple[int, ...]:
    """Indices of the GPUs that a contender works on; none on CPUs."""
    device = _device(contender, settings.device)
    if device == "cpu":
        return ()
    if device == "cuda":
        return tuple(range(1 if settings.transport == "inprocess" else contender.stages))
    return tuple(sorted({int(name.partition(":")[2]) for name in device.split(",")}))


def devices(contender: Contender, settings: Settings) -> int:
    """How many devices a contender takes: GPUs, or processes with layers of the target or of a drafter.

    On GPUs a drafter shares the first stage's.
    """
    drafts = contender.how.drafter in (*USES_MODULE, "model")
    return len(gpus(contender, settings)) or contender.stages + drafts


def _device(contender: Contender, device: str) -> str:
    """One device takes the first of a list."""
    return device.partition(",")[0] if contender.how.one_device else device

"""What is compared, and how each contender is started. Pure."""

import msgspec
from msgspec.structs import asdict

from workers.emulation import Emulation
from workers.errors import ConfigError

SINGLE = "single"  # all layers in one stage process, no speculation
HUGGING_FACE = "hf"  # Hugging Face `generate`
NONE = "none"  # the pipeline without speculation
SCRIPTED = "scripted"  # rehearsal
SERVED = (NONE, "ngram", "pdm", "pdm+ngram", SCRIPTED)  # drafters of `echelon serve`
ONE_DEVICE = (SINGLE, HUGGING_FACE)
METHODS = (*SERVED, *ONE_DEVICE)
USES_MODULE = ("pdm", "pdm+ngram")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides the numbers besides contender, temperature and data set. All cells of a folder share it."""

    model: str
    max_tokens: int
    limit: int | None = None  # prompts a data set; None: all
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_model_len: int = 2048
    threads: int = 1  # of a stage, and of Hugging Face
    device: str = "cpu"
    dtype: str = "auto"
    transport: str = "auto"
    delta: int = 0
    emulate: Emulation = Emulation()
    always_draft: bool = False
    ignore_eos: bool = False  # every answer then has `max_tokens` tokens
    scripted_acceptance: float | None = None
    module: str | None = None  # SHA-256 of the draft module's weights


class Contender(msgspec.Struct, frozen=True, order=True):
    """One way of serving the model."""

    method: str
    stages: int

    def __str__(self) -> str:
        return self.method if self.method in ONE_DEVICE else f"{self.method}, n={self.stages}"


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
    served = [method for method in dict.fromkeys(methods) if method in SERVED]
    alone = [Contender(method, 1) for method in dict.fromkeys(methods) if method in ONE_DEVICE]
    groups = [[Contender(method, count) for method in served] for count in dict.fromkeys(stages)] if served else [[]]
    groups[0] = groups[0] + alone
    return groups


def check(settings: Settings, methods: tuple[str, ...], *, has_module: bool) -> None:
    """Raises `ConfigError` where an option is missing for a method, or is for none of them."""
    if settings.max_tokens < 2:
        raise ConfigError("--max-tokens must be at least 2: the time after the first token is what is measured")
    if settings.limit is not None and settings.limit < 1:
        raise ConfigError("--limit must be at least 1 prompt a data set")
    settings.emulate.check()
    if (SCRIPTED in methods) != (settings.scripted_acceptance is not None):
        raise ConfigError("--methods scripted and --scripted-acceptance P belong together; give both or neither")
    if has_module and not any(method in USES_MODULE for method in methods):
        raise ConfigError(f"--draft-module is for --methods {' or '.join(USES_MODULE)}")


def serve_arguments(contender: Contender, settings: Settings, module: str | None) -> list[str]:
    """Arguments of `echelon serve`, from MODEL on, that start `contender`; `module` is the draft module's path."""
    single = contender.method == SINGLE
    arguments = [settings.model, "--served-model-name", "bench", "--stages", str(contender.stages)]
    arguments += ["--drafter", NONE if single else contender.method]
    if module is not None and contender.method in USES_MODULE:
        arguments += ["--draft-module", module]
    if contender.method == SCRIPTED:
        arguments += ["--scripted-acceptance", str(settings.scripted_acceptance)]
    arguments += ["--max-model-len", str(settings.max_model_len), "--threads", str(settings.threads)]
    arguments += ["--device", settings.device, "--dtype", settings.dtype, "--transport", settings.transport]
    arguments += ["--delta", str(settings.delta)]
    for name, ms in asdict(settings.emulate).items():
        arguments += [f"--emulate-{name.replace('_', '-')}", str(ms)]
    if settings.always_draft and contender.method in SERVED:
        arguments.append("--always-draft")
    return arguments

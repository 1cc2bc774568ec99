"""Command line of `echelon bench`."""

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speculation.bench.configuration import METHODS, USES_MODEL, USES_MODULE, Contender, Settings, check, contenders
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError

_QUICK_PROMPTS = 1
_QUICK_TOKENS = 32
_FULL_TOKENS = 256


@dataclass(frozen=True)
class Options:
    """The command line, checked."""

    prompts: Path
    out: Path
    groups: list[list[Contender]]
    temperatures: tuple[float, ...]
    repeats: int
    module: Path | None
    settings: Settings


def parse(arguments: Sequence[str]) -> Options:
    """Reads the command line; raises `ConfigError` naming the option that is wrong."""
    given = _parser().parse_args(arguments)
    methods = _words(given.methods)
    settings = Settings(
        model=given.model,
        max_tokens=given.max_tokens or (_QUICK_TOKENS if given.quick else _FULL_TOKENS),
        limit=given.limit if given.limit is not None else (_QUICK_PROMPTS if given.quick else None),
        top_k=given.top_k,
        top_p=given.top_p,
        seed=given.seed,
        max_model_len=given.max_model_len,
        threads=given.threads,
        device=given.device,
        dtype=given.dtype,
        transport=given.transport,
        delta=given.delta,
        num_speculative_tokens=given.num_speculative_tokens,
        draft_model=given.draft_model,
        emulate=Emulation(*(getattr(given, f"emulate_{name}") for name in Emulation.__struct_fields__)),
        always_draft=given.always_draft,
        ignore_eos=given.ignore_eos,
        scripted_acceptance=given.scripted_acceptance,
        module=None if given.draft_module is None else module_digest(given.draft_module),
    )
    groups = contenders(methods, _numbers("--stages", given.stages))
    check(settings, methods, has_module=given.draft_module is not None)
    if given.repeats < 1:
        raise ConfigError("--repeats must be at least 1")
    temperatures = _temperatures(given.temperature)
    module = None if given.draft_module is None else given.draft_module.resolve()
    return Options(given.prompts, given.out, groups, temperatures, given.repeats, module, settings)


def module_digest(module: Path) -> str:
    """SHA-256 of a draft module's weights; raises `ConfigError` where there are none."""
    file = module / "model.safetensors" if module.is_dir() else module
    try:
        with file.open("rb") as weights:
            return hashlib.file_digest(weights, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"--draft-module {module}: {error.strerror}: {file}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="echelon bench",
        description="Serves MODEL with every method in turn, sends all of them the same prompts over HTTP, and writes "
        "results.json and results.md. Run the same command again to go on after an interruption.",
    )
    add = parser.add_argument
    add("model", nargs="?", default="default", help="as for `echelon serve`")
    add("--prompts", type=Path, required=True, help="folder; every .jsonl file in it is a data set")
    add("--out", type=Path, required=True, help="folder for results, logs and raw measurements")
    add("--methods", default="none,single,ngram", help=f"of {','.join(METHODS)} (default: %(default)s)")
    add("--stages", default="2", help="such as 2,3,5,10 (default: %(default)s)")
    add("--temperature", default="0", help="such as 0,1 (default: %(default)s)")
    add("--repeats", type=int, default=1, help="of everything; speeds are then medians (default: %(default)s)")
    add("--quick", action="store_true", help=f"{_QUICK_PROMPTS} prompt a data set, {_QUICK_TOKENS} tokens")
    add("--limit", type=int, help="prompts a data set, the first ones (default: all)")
    add("--max-tokens", type=int, help=f"of an answer (default: {_FULL_TOKENS})")
    add("--top-k", type=int, default=0, help="0: all (default)")
    add("--top-p", type=float, default=1.0)
    add("--ignore-eos", action="store_true", help="go on after end tokens, so that all answers are equally long")
    add("--seed", type=int, default=0, help="from which each prompt's seed is made")
    add("--draft-module", type=Path, help=f"for {' and '.join(USES_MODULE)} (default: the one that comes with Echelon)")
    add("--draft-model", help=f"smaller model with the same tokens, for {' and '.join(USES_MODEL)}")
    add("--num-speculative-tokens", type=int, default=4, help="drafts a frame, for dtv-… (default: %(default)s)")
    for name in ("--device", "--dtype", "--transport"):
        add(name, default="cpu" if name == "--device" else "auto", help="as for `echelon serve`")
    add("--threads", type=int, default=1, help="CPU threads of a stage, and of Hugging Face (default: %(default)s)")
    add("--max-model-len", type=int, default=2048, help="as for `echelon serve` (default: %(default)s)")
    add("--delta", type=int, default=0, help="as for `echelon serve`")
    add("--always-draft", action="store_true", help="draft even while it loses; for figures of drafters alone")
    for name in Emulation.__struct_fields__:
        add(f"--emulate-{name.replace('_', '-')}", type=float, default=0.0, help="rehearsal: as for `echelon serve`")
    add("--scripted-acceptance", type=float, help="rehearsal: acceptance of the method `scripted`")
    return parser


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError:
        raise ConfigError(f"{option} {text}: give whole numbers, such as 2,3,5") from None


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        temperatures = tuple(dict.fromkeys(float(word) for word in _words(text)))
    except ValueError:
        temperatures = ()
    if not temperatures or not all(0 <= value <= 2 for value in temperatures):
        raise ConfigError(f"--temperature {text}: give numbers from 0 to 2, such as 0,1")
    return temperatures

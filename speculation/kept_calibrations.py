"""What calibrations have found, kept for the next start with the same machine and settings."""

import hashlib
import platform
from pathlib import Path

import msgspec

from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Measured
from workers.prepare.prepared_folders import cache_folder
from workers.shared.config import EngineConfig
from workers.shared.processes.logs import tell
from workers.shared.time_slices import available_cores

_USUAL_TOKENS = 256  # of an answer
_STEADY = 1.2  # spread beyond which the machine was too busy for the times to be of use at the next start
_FORMAT = 2  # of the file


def say_expected(controller: Controller) -> None:
    """A line for the operator: what each choice should do, and which is taken."""
    rates = ", ".join(f"{name} {rate:.1f}" for name, rate in controller.predicted().items())
    if len(controller.choices) > 1:
        chosen = controller.begin(_USUAL_TOKENS).choice.name
        tell(f"calibrated: {rates} tok/s expected; drafting with {chosen} at first")


class _Kept(msgspec.Struct):
    """The file behind `load_measured`."""

    key: str
    measured: Measured


def load_measured(config: EngineConfig) -> Measured | None:
    """What an earlier start has measured with the same machine and settings."""
    key = _key(config)
    try:
        kept = msgspec.json.decode(_file(key).read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return None  # there is none, or it is of another version: it is measured again
    return kept.measured if kept.key == key else None


def save_measured(config: EngineConfig, measured: Measured) -> None:
    """Keeps `measured` for `load_measured`, unless the machine was too busy while it was.

    Where it cannot be kept, that is said and nothing else happens.
    """
    key = _key(config)
    if measured.spread > _STEADY:
        return
    try:
        _file(key).write_bytes(msgspec.json.encode(_Kept(key, measured)))
    except OSError as error:
        tell(f"calibration not kept for the next start: {error}")


def forget_measured(config: EngineConfig) -> None:
    """What was kept has turned out wrong: the next start measures again."""
    try:
        _file(_key(config)).unlink(missing_ok=True)
    except OSError as error:
        tell(f"calibration that requests contradict not deleted: {error}")


def _file(key: str) -> Path:
    folder = cache_folder() / "calibration"
    folder.mkdir(exist_ok=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _key(config: EngineConfig) -> str:
    settings = msgspec.to_builtins(config)
    del settings["endpoints"]
    return msgspec.json.encode([_FORMAT, platform.node(), processor_name(), available_cores(), settings]).decode()


def processor_name() -> str:
    """As the system calls it; where it does not, the kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())

"""From a head whose files leave readings open to the one that is used; what was found is kept for the next start."""

import hashlib
from pathlib import Path

import msgspec
import torch

from speculation.heads.checkpoint import LoadedHead
from speculation.heads.config import HeadConfig
from speculation.heads.layouts import Readings
from speculation.heads.network import EagleHead
from speculation.heads.passages import read_passages
from speculation.heads.readings import POOR, RightDrafts, Tried, anchors_of, try_readings
from workers.prepare.prepared_folders import cache_folder
from workers.shared.model_files.digest import file_digest, weights_digest
from workers.shared.processes.logs import tell
from workers.shared.progress import Progress

_FORMAT = 1


class _Kept(msgspec.Struct):
    """The file of what was found."""

    reading: HeadConfig
    first: float
    second: float


def settled(loaded: LoadedHead, folder: Path, target: Path, dtype: torch.dtype, device: torch.device) -> EagleHead:
    """The head in the reading that the target in the model folder `target` agrees with best, and a line about it."""
    readings = loaded.readings
    if not readings.others:
        return loaded.network
    file = _file(folder, target)
    best = _read(file, readings)
    if best is None:
        label = f"draft head {folder.name}: trying {1 + len(readings.others)} readings"
        with Progress(label) as progress:
            passages = read_passages(target, anchors_of(readings), dtype, device, progress.update)
            best = try_readings(loaded.network, readings, passages)[0]
        _keep(file, best)
    _say(folder, readings, best)
    return loaded.network.meant(best.reading, sorted(best.reading.features))


def _say(folder: Path, readings: Readings, best: Tried) -> None:
    first, second = best.agreement
    meant = "as declared" if best.reading == readings.declared else "otherwise than its layout declares"
    tell(
        f"draft head {folder.name}: its files do not say {' and '.join(readings.open)}; read {meant} (hidden states "
        f"{list(best.reading.features)}, norm_before_residual {best.reading.norm_before_residual}, norm_output "
        f"{best.reading.norm_output}): {first:.2f} of first drafts and {second:.2f} of second ones are the target's"
    )
    if best.agreement.first < POOR:
        tell(f"draft head {folder.name}: so few drafts are right in every reading: is it for this model?")


def _file(folder: Path, target: Path) -> Path:
    """Where what was found of this head and target is kept, whatever their paths."""
    weights = next(path for name in ("model.safetensors", "pytorch_model.bin") if (path := folder / name).exists())
    about = weights.stat()
    key = (
        f"{_FORMAT} {file_digest(folder / 'config.json')} {about.st_size} {about.st_mtime_ns} {weights_digest(target)}"
    )
    return cache_folder() / "head-readings" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _read(file: Path, readings: Readings) -> Tried | None:
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return None  # there is none, or it is of another version: they are tried again
    known = kept.reading in (readings.declared, *readings.others)
    return Tried(kept.reading, RightDrafts(kept.first, kept.second)) if known else None


def _keep(file: Path, best: Tried) -> None:
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(msgspec.json.encode(_Kept(best.reading, *best.agreement)))
    except OSError as error:
        tell(f"reading of the draft head not kept for the next start: {error}")

"""The folder of a training run: what is in it, whether a run may go on with it, and how it is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from speculation.pdm.archive import load_archive
from speculation.pdm.checkpoint import WEIGHTS
from speculation.pdm.replacing import replace_bytes, replacing
from speculation.training.kinds.base import Learner
from speculation.training.provenance import TrainingProvenance
from speculation.training.settings import TrainingSettings
from workers.shared.errors import ConfigError
from workers.shared.model_files.digest import ModelDigest

_CHECKPOINT = "checkpoint.pt"
_CURVE = "curve.jsonl"


class Identity(msgspec.Struct, frozen=True):
    """Everything that decides what a run comes to: what is resumed must have the same."""

    settings: TrainingSettings
    target: ModelDigest
    examples: str  # SHA-256 of their tokens
    processes: int = 1


class TrainingState(msgspec.Struct):
    """Where a run is."""

    identity: dict[str, Any]  # of `Identity`
    module: dict[str, Any]
    optimizer: dict[str, Any]
    step: int


class RunFolder:
    """`checkpoint.pt`, `curve.jsonl`, `settings.json`, `provenance.json`, and what is served from."""

    def __init__(self, path: Path, identity: Identity) -> None:
        """Nothing is written before `begin`."""
        self.path = path
        self._identity = identity

    def load(self) -> TrainingState | None:
        """Where an earlier run stopped, on the CPU; None where there was none.

        Raises `ConfigError` where the folder holds another run, a module without a run, or a broken checkpoint.
        """
        path = self.path / _CHECKPOINT
        if not path.exists():
            if (self.path / WEIGHTS).exists():
                raise ConfigError(f"{self.path / WEIGHTS}: exists, with no {_CHECKPOINT} to go on from; another --out?")
            return None
        checkpoint = load_archive(path, TrainingState, "checkpoint of a training run")
        mine, theirs = _flat(msgspec.to_builtins(self._identity)), _flat(checkpoint.identity)
        if changed := sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)):
            raise ConfigError(f"{path}: was trained with other settings ({', '.join(changed)}); choose another --out")
        return checkpoint

    def begin(self, provenance: TrainingProvenance, step: int) -> None:
        """Training starts, or goes on at `step`: what the curve says of later steps was never saved."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name, content in (("settings", self._identity.settings), ("provenance", provenance)):
            replace_bytes(self.path / f"{name}.json", msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        curve = self.path / _CURVE
        if curve.exists():
            lines = curve.read_bytes().splitlines(keepends=True)
            replace_bytes(curve, b"".join(line for line in lines if _step(line) <= step))

    def record(self, entry: Mapping[str, Any]) -> None:
        """Adds a line to the curve."""
        with (self.path / _CURVE).open("ab") as curve:
            curve.write(msgspec.json.encode(entry) + b"\n")

    def save(self, learner: Learner, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Keeps where the run is, and the checkpoint as it is now."""
        checkpoint = {
            "identity": msgspec.to_builtins(self._identity),
            "module": learner.network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
        }
        with replacing(self.path / _CHECKPOINT) as new:
            torch.save(checkpoint, new)
        learner.save(self.path)


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their own names; the rest by what they are."""
    rest = {name: value for name, value in identity.items() if name != "settings"}
    return rest | dict(identity.get("settings", {}))


def _step(line: bytes) -> int:
    """The step of a line of the curve; none, so that it goes, where a killed run left half of it."""
    try:
        return msgspec.json.decode(line, type=_Entry).step
    except msgspec.MsgspecError:
        return 2**62


class _Entry(msgspec.Struct):
    step: int

"""The teacher's targets on disk, for machines on which running the target costs more than reading.

About 2 (anchors + 1) H bytes a token, in bfloat16. The embedding anchor is not stored.
"""

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
import torch
from torch import Tensor
from tqdm import tqdm

from speculation.pdm.replacing import replace_bytes
from speculation.training.examples.data import Example
from speculation.training.teacher import Targets, Teacher
from workers.shared.errors import ConfigError

_GROUP = 8  # examples in one pass of the target


class _State(msgspec.Struct):
    """What the cache is of, and how far it got."""

    fingerprint: str
    done: int = 0  # examples


class CachedTeacher:
    """Memory-mapped targets of all examples. `build` fills it and may be interrupted; then it goes on."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        examples: Sequence[Example],
        anchors: int,
        embedding: Tensor,
    ) -> None:
        """`embedding` is the target's table `[V, H]`. A cache of something else in `folder` is a `ConfigError`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._state_file = folder / "state.json"
        self._state = _State(fingerprint)
        if self._state_file.exists():
            try:
                self._state = msgspec.json.decode(self._state_file.read_bytes(), type=_State)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{self._state_file}: {error}; choose another --cache") from error
        if self._state.fingerprint != fingerprint:
            raise ConfigError(f"{folder}: caches another target, data set or list of anchors; choose another --cache")
        self._examples = examples
        self._embedding = embedding
        self._offsets = [0, *accumulate(map(len, examples))]
        tokens, hidden = self._offsets[-1], embedding.shape[1]
        self._anchors = self._mapped(folder / "anchors.bin", (tokens, anchors - 1, hidden), torch.bfloat16)
        self._normed = self._mapped(folder / "normed.bin", (tokens, hidden), torch.bfloat16)
        self._log_z = self._mapped(folder / "log_z.bin", (tokens,), torch.float32)
        self._best = self._mapped(folder / "best.bin", (tokens,), torch.int64)

    @property
    def complete(self) -> bool:
        """Whether every example is cached."""
        return self._state.done == len(self._examples)

    def build(self, teacher: Teacher) -> None:
        """Asks `teacher` for every example that is not cached yet."""
        total = len(self._examples)
        with tqdm(total=self._offsets[-1], unit="tok", desc="target", initial=self._offsets[self._state.done]) as bar:
            while self._state.done < total:
                end = min(self._state.done + _GROUP, total)
                targets = teacher.targets(range(self._state.done, end))
                rows = slice(self._offsets[self._state.done], self._offsets[end])
                self._anchors[rows] = targets.anchors[:, 1:].to("cpu", torch.bfloat16)
                self._normed[rows] = targets.normed.to("cpu", torch.bfloat16)
                self._log_z[rows] = targets.log_z.cpu()
                self._best[rows] = targets.best.cpu()
                self._state.done = end
                replace_bytes(self._state_file, msgspec.json.encode(self._state))
                bar.update(rows.stop - rows.start)

    def targets(self, indices: Sequence[int]) -> Targets:
        """See `Teacher`; float32 on the device of the embedding, rounded to bfloat16 once."""
        device = self._embedding.device
        rows = torch.cat([torch.arange(self._offsets[i], self._offsets[i + 1]) for i in indices])
        ids = torch.tensor([token for i in indices for token in self._examples[i].tokens], device=device)
        embedded = self._embedding[ids].float()[:, None]
        return Targets(
            torch.cat([embedded, self._anchors[rows].to(device, torch.float32)], dim=1),
            self._normed[rows].to(device, torch.float32),
            self._log_z[rows].to(device),
            self._best[rows].to(device),
        )

    def _mapped(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The file as a tensor. All of it is allocated now: a full disk would end the process in mid-write."""
        size = torch.Size(shape).numel()
        if size == 0:  # the embedding is the only anchor
            return torch.empty(shape, dtype=dtype)
        if self._state.done and (not path.exists() or path.stat().st_size != size * dtype.itemsize):
            raise ConfigError(f"{path}: is not what {self._state_file.name} says it is; choose another --cache")
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
        except OSError as error:
            raise ConfigError(f"--cache: {path} needs {size * dtype.itemsize} bytes: {error.strerror}") from error
        return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape)

"""Where the stages of an engine run, as the launcher sees it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from server.launcher.resolve import ModelSize, choose_split, local_endpoints, plan_engine
from workers.shared.config import EngineConfig
from workers.shared.options.engine import EngineOptions
from workers.shared.processes.children import Child, Spawn


class StageHosts(Protocol):
    """One host or several."""

    def plan(self, attempt: int) -> EngineConfig:
        """The configuration of the next engine; the last one has ended. May take as long as it takes."""

    def start(self, config: EngineConfig, path: Path, spawn: Spawn) -> Sequence[Child]:
        """Starts the stages, this launcher's own children by `spawn`; returns those."""

    def close(self) -> None:
        """Ends what is not the launcher's to end."""


class LocalStages:
    """All stages are children of the launcher."""

    def __init__(self, model: ModelSize, options: EngineOptions, run: Path) -> None:
        """`run` is the launcher's folder."""
        self._model = model
        self._options = options
        self._run = run

    def plan(self, attempt: int) -> EngineConfig:
        """See `StageHosts`: sockets are new, so that nothing of the last engine gets in."""
        stages = len(choose_split(self._options, self._model))
        return plan_engine(self._options, self._model, local_endpoints(self._run, stages, attempt))

    def start(self, config: EngineConfig, path: Path, spawn: Spawn) -> Sequence[Child]:
        """See `StageHosts`."""
        if config.transport == "inprocess":
            return ()
        return [
            spawn(f"stage {i}", "workers", "--stage", str(i), "--config", str(path), threads=config.threads)
            for i in range(config.stages)
        ]

    def close(self) -> None:
        """See `StageHosts`."""

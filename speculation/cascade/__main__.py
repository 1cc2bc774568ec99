"""`python -m speculation.cascade --config FILE`: the models of a cascade, and who starts them again.

Runs beside rank 0. With `--model I` it is model number I, 0 being the smallest.
"""

import argparse
import signal
import sys
from functools import partial
from pathlib import Path

from speculation.cascade.supervisor import supervise
from workers.shared.config import EngineConfig, load_config
from workers.shared.errors import ConfigError, EchelonError
from workers.shared.lifecycle import die_with_parent
from workers.shared.processes.children import Child, Spawn, spawn
from workers.shared.processes.forked import LOADING, ForkServer, may_fork
from workers.shared.processes.logs import configure, tell_end
from workers.shared.time_slices import be_punctual


def main() -> int:
    """Runs all models, or one; 2 is the exit code of an error that a restart would not mend."""
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # which a child has from its supervisor
    parser = argparse.ArgumentParser(prog="python -m speculation.cascade", description="Runs models below the target.")
    parser.add_argument("--config", type=Path, required=True, help="engine configuration, .json or .toml")
    parser.add_argument("--model", type=int, help="run this model only, from 0, the smallest; else all, supervised")
    arguments = parser.parse_args()
    name = "cascade" if arguments.model is None else f"cascade model {arguments.model}"
    try:
        configure(name)
        config = load_config(arguments.config)
        models = len(config.drafter.cascade)
        if arguments.model is None:
            with ForkServer("speculation.cascade.assemble", LOADING) as copies:
                devices = map(config.drafter.cascade_device, range(models))
                start: Spawn = copies.spawn if may_fork(devices) else spawn
                return supervise([partial(_start, config, arguments.config, model, start) for model in range(models)])
        if not 0 <= arguments.model < models:
            raise ConfigError(f"--model must be 0..{models - 1} for a cascade of {models} models")
        be_punctual()
        _run(config, arguments.model)
    except EchelonError as error:
        return tell_end(name, error)
    return 0


def _start(config: EngineConfig, path: Path, model: int, start: Spawn) -> Child:
    arguments = ("speculation.cascade", "--config", str(path), "--model", str(model))
    return start(f"cascade model {model}", *arguments, threads=config.drafter.threads)


def _run(config: EngineConfig, model: int) -> None:
    from speculation.cascade.assemble import assemble  # imports torch: seconds

    process = assemble(config, model)
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: process.stop())
    process.run()


if __name__ == "__main__":
    sys.exit(main())

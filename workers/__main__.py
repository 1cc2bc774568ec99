"""`python -m workers --stage I --config FILE`: one stage worker.

Started by torchrun or Slurm it takes its number from them; without a configuration it asks rank 0 for one, as
`echelon join` does.
"""

import argparse
import gc
import os
import sys
from pathlib import Path

from workers.hosts.join import main as join
from workers.shared.config import load_config
from workers.shared.errors import ConfigError, EchelonError
from workers.shared.hosts.group_key import GroupContext
from workers.shared.hosts.options import DEFAULT_PORT
from workers.shared.hosts.place import read_place
from workers.shared.lifecycle import die_with_parent
from workers.shared.processes.logs import configure, tell_end
from workers.shared.time_slices import be_punctual


def main() -> int:
    """Runs the stage; 2 is the exit code of an error that a restart would not mend."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m workers", description="Runs one stage of the pipeline.")
    parser.add_argument("--stage", type=int, help="index of the stage, from 0; else RANK or SLURM_PROCID")
    parser.add_argument(
        "--config", type=Path, help=f"engine configuration, .json or .toml; else rank 0 at $MASTER_ADDR:{DEFAULT_PORT}"
    )
    arguments = parser.parse_args()
    if arguments.config is None:
        return join([] if arguments.stage is None else ["--stage", str(arguments.stage)])
    stage = arguments.stage
    try:
        place = read_place(os.environ)
        stage = place.rank if stage is None else stage
        if stage is None:
            raise ConfigError("--stage is missing, and neither RANK nor SLURM_PROCID is set")
        configure(f"stage {stage}")
        be_punctual()
        gc.disable()  # until it has settled
        config = load_config(arguments.config)
        if arguments.stage is None and place.world not in (None, config.stages):
            raise ConfigError(f"WORLD_SIZE={place.world}: the configuration has {config.stages} stages; start as many")
        if not 0 <= stage < config.stages:
            raise ConfigError(f"--stage must be 0..{config.stages - 1} for a split of {config.stages} stages")
        from workers.stage.launch import network_edges, run_stage  # imports torch: seconds

        context = GroupContext(config.endpoints.token)
        run_stage(config, stage, context, network_edges(config, context))
    except EchelonError as error:
        return tell_end(f"stage {stage}", error)
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

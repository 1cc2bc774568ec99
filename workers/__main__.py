"""`python -m workers --stage I --config FILE`: one stage worker."""

import argparse
import sys
from pathlib import Path

from workers.shared.config import load_config
from workers.shared.errors import ConfigError, EchelonError
from workers.shared.hosts.group_key import GroupContext
from workers.shared.lifecycle import die_with_parent
from workers.shared.processes.logs import configure, tell
from workers.shared.time_slices import be_punctual


def main() -> int:
    """Runs the stage; 2 is the exit code of an error that a restart would not mend."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m workers", description="Runs one stage of the pipeline.")
    parser.add_argument("--stage", type=int, required=True, help="index of the stage, from 0")
    parser.add_argument("--config", type=Path, required=True, help="engine configuration, .json or .toml")
    arguments = parser.parse_args()
    try:
        configure(f"stage {arguments.stage}")
        be_punctual()
        config = load_config(arguments.config)
        if not 0 <= arguments.stage < config.stages:
            raise ConfigError(f"--stage must be 0..{config.stages - 1} for a split of {config.stages} stages")
        from workers.stage.launch import network_edges, run_stage  # imports torch: seconds

        context = GroupContext(config.endpoints.token)
        run_stage(config, arguments.stage, context, network_edges(config, context))
    except ConfigError as error:
        tell(f"stage {arguments.stage}: {error}", error=True)
        return 2
    except EchelonError as error:
        tell(f"stage {arguments.stage}: {error}", error=True)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

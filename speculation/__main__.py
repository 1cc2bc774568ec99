"""`python -m speculation --config FILE`: rank 0 of an engine."""

import argparse
import gc
import signal
import sys
from pathlib import Path

from speculation.channels import Channels
from speculation.decisions.controller import Controller
from speculation.decisions.policy import choose_policy
from speculation.drafters.build import build_drafters, choices, sources_of
from speculation.engine import Engine
from speculation.kept_calibrations import load_measured
from workers.decisions.check_config import check_config
from workers.shared.config import EngineConfig, load_config
from workers.shared.errors import EchelonError
from workers.shared.hosts.group_key import GroupContext
from workers.shared.lifecycle import die_with_parent
from workers.shared.model_files.facts import read_facts
from workers.shared.processes.logs import configure, tell_end
from workers.shared.time_slices import be_punctual, settle


def main() -> int:
    """Runs rank 0; 2 is the exit code of an error that a restart would not mend."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m speculation", description="Runs rank 0: queue, schedule, drafter.")
    parser.add_argument("--config", type=Path, required=True, help="engine configuration, .json or .toml")
    arguments = parser.parse_args()
    try:
        configure("rank 0")
        be_punctual()
        gc.disable()  # until it has settled
        config = load_config(arguments.config)
        check_config(config)
        serve(config)
    except EchelonError as error:
        return tell_end("speculation rank", error)
    return 0


def serve(config: EngineConfig) -> None:
    """Runs the engine until SIGTERM or SIGINT; with the in-process transport the stages run here too, in threads."""
    policy = choose_policy(config)
    vocab_size = read_facts(Path(config.model)).vocab_size
    offered = choices(config.drafter)
    controller = Controller(config.stages, offered, load_measured(config), width=policy.shapes[0].width)
    context = GroupContext(config.endpoints.token)
    # Before anything is loaded, which may take minutes: stages wait for somebody to listen, and not for long.
    channels = Channels(context, config.endpoints, config.stall_timeout)
    threads = []
    try:
        drafters = build_drafters(config, vocab_size, offered)
        channels.attend(sources_of(drafters))
        engine = Engine(config, vocab_size, policy, drafters, channels, controller)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, lambda *_: engine.stop())
        if config.transport == "inprocess":
            from workers.stage.launch import start_threads  # imports torch: only where stages run in this process

            threads = start_threads(config, context)
        settle()
        engine.run()
    finally:
        channels.close()
        for thread in threads:
            thread.join(timeout=5)


if __name__ == "__main__":
    sys.exit(main())

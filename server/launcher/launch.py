"""`echelon serve`: starts the engine's processes and the API server, supervises them, and takes them all down."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from msgspec.structs import replace

from server.hosts.joined_stages import Gathering, JoinedStages
from server.launcher.options import ServeOptions
from server.launcher.own_server import check_port_is_free, controller_of, not_ready
from server.launcher.prepared import check_flags, read_model, with_prepared_draft_model
from server.launcher.restarts import RestartBudget
from server.launcher.run_folder import make_run_folder
from server.launcher.signals import Stopped, ignore_signals, stop_signals
from server.launcher.speculative_config import settle_speculation
from server.launcher.stage_hosts import LocalStages, StageHosts
from server.launcher.summary import example, summary
from server.settings import ServerOptions, check_server, save_settings, settings_for
from workers.shared.config import EngineConfig, save_config
from workers.shared.drafters import DRAFTERS
from workers.shared.errors import ConfigError, EchelonError
from workers.shared.lifecycle import die_with_parent
from workers.shared.memory import check_devices, free_bytes, needs_of, report
from workers.shared.processes.children import Child, Group, Spawn, spawn, wait_for_any_exit
from workers.shared.processes.forked import STAGES, ForkServer, may_fork
from workers.shared.processes.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, configure, tell

_PERMANENT = 2  # exit code of a process that a restart would not mend
_RESTARTS = 5  # this many within
_RESTART_WINDOW = 300.0  # seconds, and the launcher gives up
_ENGINE_GRACE = 3.0  # seconds to leave in
_SERVER_GRACE = 5.0
_LOOK = 0.1  # seconds between two looks at processes that are starting
_LONGEST_LOOK = 0.5
_FIRST_WORD = 10.0  # seconds after which a slow start is explained, then after twice as long each time
_DONE_ONCE = (*STAGES, "speculation.engine")  # for all processes that compute
_BEYOND = 3  # times --ready-timeout: rank 0 will have given up long before, or knows that a stage goes on loading


class StartFailed(EchelonError):
    """Processes that did not come up."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.permanent = permanent


def serve(options: ServeOptions) -> int:
    """Serves until told to stop; returns an exit code. Raises `ConfigError` for anything the flags got wrong."""
    die_with_parent()
    os.environ[FORMAT_VARIABLE], os.environ[LEVEL_VARIABLE] = options.log_format, options.log_level  # for all processes
    configure("launcher")
    check_server(options.api)
    options = replace(options, engine=settle_speculation(options.engine))
    gathering = None
    if options.gather_at is not None:
        gathering = Gathering.settled(options.gather_at, options.token, options.local_stages)
    here_only = options.engine if gathering is None else replace(options.engine, device=options.engine.device[:1])
    check_flags(here_only, options.model)
    check_port_is_free(options.api.host, options.api.port)
    with stop_signals():
        try:
            model = read_model(options)
            engine = with_prepared_draft_model(options.engine)
            run_folder = make_run_folder()
            try:
                stages: StageHosts = LocalStages(model, engine, run_folder)
                if gathering is not None:
                    stages = JoinedStages(gathering, model, options.model, engine, run_folder)
                return Launcher(options.api.served_model_name or model.name, stages, options.api, run_folder).run()
            finally:
                shutil.rmtree(run_folder, ignore_errors=True)
        except Stopped:
            return 0


class Launcher:
    """The supervisor. The API server outlives a failed engine group, says so meanwhile, and finds the next one."""

    def __init__(self, name: str, stages: StageHosts, server: ServerOptions, run_folder: Path) -> None:
        """`name` is the model's in the API."""
        self._name = name
        self._stages = stages
        self._server_options = server
        self._run_folder = run_folder
        self._engine = Group()
        self._server = Group()
        self._fork_server = ForkServer(*_DONE_ONCE)
        self._attempts = 0
        self._budget = RestartBudget(_RESTARTS, _RESTART_WINDOW)

    def run(self) -> int:
        """Starts everything, then restarts what fails as often as is reasonable."""
        try:
            config = self._plan()
            self._check_memory(config)
            self._start_server(config)
            self._start_engine(config)
            self._await_ready(config)
            self._announce(config)
            while True:
                wait_for_any_exit([self._engine, self._server])
                config = self._recover(self._failed(), config)
        except StartFailed as error:
            raise ConfigError(f"{error} (see above)") from error
        except Stopped:
            self._drain()
            return 0
        finally:
            ignore_signals()
            self._server.stop(_SERVER_GRACE)
            self._engine.stop(_ENGINE_GRACE)
            self._stages.close()
            self._fork_server.close()

    def _plan(self) -> EngineConfig:
        """The configuration of the next engine."""
        self._attempts += 1
        return self._stages.plan(self._attempts)

    def _check_memory(self, config: EngineConfig) -> None:
        """Tells what will be allocated; raises `ConfigError` where the parts on one device do not fit together.

        What is on other hosts is checked by its processes.
        """
        needs = needs_of(config)
        for line in report(needs, config):
            _say(line)
        here = [need for need in needs if not need.host]
        check_devices(here, config.max_model_len, free_bytes)

    def _start_engine(self, config: EngineConfig) -> None:
        path = self._run_folder / f"engine-{self._attempts}.json"
        save_config(config, path)
        computing: Spawn = self._fork_server.spawn if may_fork((*config.devices, config.drafter.device)) else spawn
        drafter = DRAFTERS[config.drafter.name]
        leading = computing if drafter.computes else spawn
        rank_0 = leading("speculation rank", "speculation", "--config", str(path), threads=config.drafter.threads)
        self._engine.children.append(rank_0)
        self._engine.children += self._stages.start(config, path, computing)
        if drafter.process:
            self._engine.children.append(spawn(config.drafter.name, drafter.process, "--config", str(path)))

    def _start_server(self, config: EngineConfig) -> None:
        settings = settings_for(
            self._server_options,
            self._name,
            config.model,
            config.endpoints.bus,
            health_timeout=config.stall_timeout,
            created=int(time.time()),
        )
        path = self._run_folder / "server.json"
        save_settings(settings, path)
        self._server.children.append(spawn("API server", "server", "--settings", str(path)))

    def _await_ready(self, config: EngineConfig) -> None:
        """Returns once a ping has been through all of the engine; raises `StartFailed`."""
        started, word, pause = time.monotonic(), _FIRST_WORD, _LOOK
        while (why := not_ready(self._server_options)) is not None:
            if (child := self._ended()) is not None:
                raise StartFailed(child.exit_text, permanent=child.process.returncode == _PERMANENT)
            waited = time.monotonic() - started
            if waited > _BEYOND * config.ready_timeout:
                raise StartFailed(f"not ready after {_BEYOND} times --ready-timeout {config.ready_timeout:g} s: {why}")
            if waited > word:
                _say(f"not ready after {waited:.0f} s of --ready-timeout {config.ready_timeout:g}: {why}")
                word *= 2
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_LOOK)

    def _ended(self) -> Child | None:
        return self._server.ended() or self._engine.ended()

    def _failed(self) -> StartFailed:
        child = self._ended()
        assert child is not None
        return StartFailed(child.exit_text, permanent=child.process.returncode == _PERMANENT)

    def _recover(self, failure: StartFailed, config: EngineConfig) -> EngineConfig:
        """Starts again what has ended, until it is ready; raises the failure that is one too many, or permanent.

        `config` is that of the engine so far; returns that of the one that runs then.
        """
        while True:
            if failure.permanent or not self._budget.allow(time.monotonic()):
                raise failure
            started = time.monotonic()
            what = "the API server" if self._server.ended() is not None else "the engine"
            _say(f"{failure}; restarting {what}")
            if self._server.ended() is not None:
                self._server.stop(grace=0.0)
                self._start_server(config)
            else:
                self._engine.stop(grace=0.0)
                config = self._plan()
                while not_ready(self._server_options) is None:  # what it has heard of the last one
                    time.sleep(_LOOK)
                self._start_engine(config)
            try:
                self._await_ready(config)
            except StartFailed as error:
                failure = error
                continue
            _say(f"{what} is back after {time.monotonic() - started:.1f} s")
            return config

    def _drain(self) -> None:
        """Lets the API server finish what it has begun; another signal cuts that short."""
        if not self._server.children or self._ended() is not None:
            return
        server, seconds = self._server.children[0].process, self._server_options.shutdown_timeout
        _say(f"stopping: open requests may finish within --shutdown-timeout {seconds:g} s")
        server.terminate()
        try:
            server.wait(seconds + _SERVER_GRACE)
        except subprocess.TimeoutExpired:
            _say("the API server does not stop by itself")
        except Stopped:
            _say("stopping at once")

    def _announce(self, config: EngineConfig) -> None:
        options = self._server_options
        for line in summary(self._name, config, needs_of(config), controller_of(options), options):
            _say(line)
        _say("try:")
        print(example(self._name, options), flush=True)


def _say(text: str) -> None:
    tell(f"echelon: {text}")

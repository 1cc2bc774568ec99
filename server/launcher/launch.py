"""`echelon serve`: starts the engine's processes and the API server, supervises them, and takes them all down."""

import contextlib
import json
import shlex
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zmq

from server.launcher.options import ServeOptions
from server.launcher.prepared import check_flags, read_model, with_prepared_draft_model
from server.launcher.processes import Child, Group, spawn, wait_for_any_exit
from server.launcher.resolve import ModelSize, choose_split, local_endpoints, plan_engine
from server.settings import KEYS_VARIABLE, ServerOptions, check_server, save_settings, settings_for
from workers.shared.bus import encode, open_socket
from workers.shared.config import EngineConfig, save_config
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import die_with_parent
from workers.shared.messages import FromEngine, Probe, Status
from workers.shared.options.engine import EngineOptions

_PERMANENT = 2  # exit code of a process that a restart would not mend
_RESTARTS = 5  # this many within
_RESTART_WINDOW = 300.0  # seconds, and the launcher gives up
_ENGINE_GRACE = 3.0  # seconds to leave in
_SERVER_GRACE = 5.0
_LOOK_MS = 100  # between two looks at processes that are starting


class _Stopped(BaseException):
    """SIGINT or SIGTERM. Not an Exception, so that nothing on the way swallows it."""


def serve(options: ServeOptions) -> int:
    """Serves until told to stop; returns an exit code. Raises `ConfigError` for anything the flags got wrong."""
    die_with_parent()
    check_server(options.api)
    check_flags(options.engine, options.model)
    check_port_is_free(options.api.host, options.api.port)
    with stop_signals():
        try:
            model = read_model(options.model)
            engine = with_prepared_draft_model(options.engine)
            run_folder = Path(tempfile.mkdtemp(prefix="echelon-"))
            try:
                return Launcher(model, engine, options.api, run_folder).run()
            finally:
                shutil.rmtree(run_folder, ignore_errors=True)
        except _Stopped:
            return 0


class Launcher:
    """The supervisor. The API server outlives a failed engine group, answers 503 meanwhile, and finds the next one."""

    def __init__(self, model: ModelSize, engine: EngineOptions, server: ServerOptions, run_folder: Path) -> None:
        self._model_size = model
        self._engine_options = engine
        self._server_options = server
        self._name = server.served_model_name or model.name
        self._run_folder = run_folder
        self._engine = Group()
        self._server = Group()
        self._attempts = 0
        self._failures: deque[float] = deque(maxlen=_RESTARTS)

    def run(self) -> int:
        """Starts everything, then restarts the engine group as often as is reasonable."""
        try:
            config = self._start_engine()
            self._start_server(config)
            self._announce(config)
            while True:
                wait_for_any_exit([self._engine, self._server])
                if (child := self._server.ended()) is not None:
                    say(f"{child.exit_text}; stopping")
                    return 1
                self._restart_engine()
        finally:
            self._server.stop(_SERVER_GRACE)
            self._engine.stop(_ENGINE_GRACE)

    def _start_engine(self) -> EngineConfig:
        """Starts rank 0 and the stages; returns once a ping has been through all of them."""
        self._attempts += 1
        stages = len(choose_split(self._engine_options, self._model_size))
        endpoints = local_endpoints(self._run_folder, stages, self._attempts)
        config = plan_engine(self._engine_options, self._model_size, endpoints)
        path = self._run_folder / f"engine-{self._attempts}.json"
        save_config(config, path)
        rank_0 = spawn("speculation rank", "speculation", "--config", str(path), threads=config.drafter.threads)
        self._engine.children.append(rank_0)
        if config.transport != "inprocess":
            for i in range(config.stages):
                arguments = ("workers", "--stage", str(i), "--config", str(path))
                self._engine.children.append(spawn(f"stage {i}", *arguments, threads=config.threads))
        with engine_probe(config.endpoints.bus) as answered:
            while not answered():
                if (child := self._engine.ended()) is not None:
                    raise _failed_start(child)
        return config

    def _restart_engine(self) -> None:
        child = self._engine.ended()
        assert child is not None
        now = time.monotonic()
        if child.process.returncode == _PERMANENT or (
            len(self._failures) == _RESTARTS and now - self._failures[0] < _RESTART_WINDOW
        ):
            raise _failed_start(child)
        self._failures.append(now)
        say(f"{child.exit_text}; restarting the engine")
        self._engine.stop(grace=0.0)
        started = time.monotonic()
        self._start_engine()
        say(f"the engine is back after {time.monotonic() - started:.1f} s")

    def _start_server(self, config: EngineConfig) -> None:
        options = self._server_options
        settings = settings_for(
            options,
            self._name,
            config.model,
            config.endpoints.bus,
            health_timeout=config.stall_timeout,
            created=int(time.time()),
        )
        path = self._run_folder / "server.json"
        save_settings(settings, path)
        self._server.children.append(spawn("API server", "server", "--settings", str(path)))
        while not is_healthy(options):
            for group in (self._server, self._engine):
                if (child := group.ended()) is not None:
                    raise _failed_start(child)
            time.sleep(_LOOK_MS / 1000)

    def _announce(self, config: EngineConfig) -> None:
        base = f"{self._server_options.scheme}://{reachable(self._server_options.host)}:{self._server_options.port}"
        body = {"model": self._name, "messages": [{"role": "user", "content": "Hello! Who are you?"}], "max_tokens": 64}
        split = "+".join(str(layers) for layers in config.split)
        how = f"{config.stages} stages of {split} layers, drafter {config.drafter.name}"
        if config.drafter.num_speculative_tokens:
            how += f", draft-then-verify with {config.drafter.num_speculative_tokens} drafts"
        say(f"serving {self._name} at {base}/v1 ({how})")
        if config.rehearsal:
            say("this is a rehearsal: the text means nothing")
        if config.emulate:
            say(f"emulated: {config.emulate}; speeds are those of a rehearsal")
        extra = "" if self._server_options.scheme == "http" else "--insecure "
        if self._server_options.api_keys:
            extra += f'-H "Authorization: Bearer ${KEYS_VARIABLE}" '
        extra += "-H 'Content-Type: application/json'"
        say("try:")
        print(f"curl {base}/v1/chat/completions {extra} -d {shlex.quote(json.dumps(body))}", flush=True)


@contextlib.contextmanager
def engine_probe(bus: str) -> Iterator[Any]:
    """Yields a function that waits a moment and tells whether the engine and all its stages have answered."""
    context: zmq.Context[Any] = zmq.Context()
    bus_socket = open_socket(context, zmq.DEALER, bus, bind=False)
    bus_socket.send(encode(Probe(0)))
    decoder = msgspec.msgpack.Decoder(FromEngine)

    def answered() -> bool:
        return bool(bus_socket.poll(_LOOK_MS)) and isinstance(decoder.decode(bus_socket.recv()), Status)

    try:
        yield answered
    finally:
        bus_socket.close()
        context.term()


def check_port_is_free(host: str, port: int) -> None:
    """Raises `ConfigError` before anything slow is started, if the port cannot be bound."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; choose another") from error


def reachable(host: str) -> str:
    """An address under which a server bound to `host` can be reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def is_healthy(options: ServerOptions) -> bool:
    """Whether /health answers 200. Whose certificate it shows does not matter: it is this launcher's own server."""
    url = f"{options.scheme}://{reachable(options.host)}:{options.port}/health"
    context = None
    if options.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _failed_start(child: Child) -> ConfigError:
    return ConfigError(f"{child.exit_text} (see above)")


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into `_Stopped`; later ones do not interrupt the clean-up."""

    def stop(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """A line for the operator."""
    print(f"echelon: {text}", file=sys.stderr, flush=True)

"""`echelon serve`: starts the engine's processes and the API server, supervises them, and takes them all down."""

import contextlib
import json
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import zmq

from server.launcher.options import EngineOptions, ModelSize, choose_split, local_endpoints, plan_engine
from server.launcher.processes import Child, Group, spawn, wait_for_any_exit
from server.launcher.server_options import KEYS_VARIABLE, ServerOptions
from server.settings import ServerSettings, save_settings
from workers.shared.bus import encode, open_socket
from workers.shared.config import EngineConfig, save_config
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import die_with_parent
from workers.shared.messages import FromEngine, Probe, Status
from workers.shared.model_files.facts import read_facts
from workers.shared.model_files.tensor_sizes import layer_bytes

_PERMANENT = 2  # exit code of a process that a restart would not mend
_RESTARTS = 5  # this many within
_RESTART_WINDOW = 300.0  # seconds, and the launcher gives up
_ENGINE_GRACE = 3.0  # seconds to leave in
_SERVER_GRACE = 5.0
_LOOK_MS = 100  # between two looks at processes that are starting


class _Stopped(BaseException):
    """SIGINT or SIGTERM. Not an Exception, so that nothing on the way swallows it."""


def serve(model: str, engine_options: EngineOptions, server_options: ServerOptions) -> int:
    """Serves until told to stop; returns an exit code. Raises `ConfigError` for anything the flags got wrong."""
    die_with_parent()
    server_options.check()
    check_port_is_free(server_options.host, server_options.port)
    with stop_signals():
        try:
            model_size = read_model(prepare_model(model))
            engine_options = with_prepared_draft_model(engine_options)
            run_folder = Path(tempfile.mkdtemp(prefix="echelon-"))
            try:
                return Launcher(model, model_size, engine_options, server_options, run_folder).run()
            finally:
                shutil.rmtree(run_folder, ignore_errors=True)
        except _Stopped:
            return 0


class Launcher:
    """The supervisor. The API server outlives a failed engine group, answers 503 meanwhile, and finds the next one."""

    def __init__(
        self, model: str, model_size: ModelSize, engine: EngineOptions, server: ServerOptions, run_folder: Path
    ) -> None:
        self._model_size = model_size
        self._engine_options = engine
        self._server_options = server
        self._name = server.served_model_name or display_name(model)
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
        settings = ServerSettings(
            model=config.model,
            served_model_name=self._name,
            bus=config.endpoints.bus,
            host=options.host,
            port=options.port,
            max_queue=options.max_queue,
            health_timeout=config.stall_timeout,
            tool_call_parser=options.tool_call_parser,
            api_keys=options.api_keys,
            cors_origins=options.cors_origins,
            ssl_keyfile=None if options.ssl_keyfile is None else str(options.ssl_keyfile.absolute()),
            ssl_certfile=None if options.ssl_certfile is None else str(options.ssl_certfile.absolute()),
            request_timeout=options.request_timeout,
            header_timeout=options.header_timeout,
            max_requests=options.max_requests,
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


def prepare_model(model: str) -> Path:
    """The prepared folder of `model`; the download and conversion show their own progress on stderr."""
    command = [sys.executable, "-m", "workers.prepare", model]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(f"model {model} could not be prepared (see above)")
    return Path(done.stdout.splitlines()[-1])


def with_prepared_draft_model(options: EngineOptions) -> EngineOptions:
    """The same options with the draft model, if there is one, as a prepared folder."""
    drafter = options.drafter
    if drafter.draft_model is None:
        return options
    folder = str(prepare_model(drafter.draft_model))
    return replace(options, drafter=msgspec.structs.replace(drafter, draft_model=folder))


def read_model(folder: Path) -> ModelSize:
    """What the launcher needs to know of a prepared folder."""
    layers, head = layer_bytes(folder)
    return ModelSize(folder, layers, head, read_facts(folder).max_position_embeddings)


def display_name(model: str) -> str:
    """The name under which a model is served unless --served-model-name says otherwise."""
    if model == "default":
        return "SmolLM2-135M-Instruct"
    path = Path(model).expanduser()
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model


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

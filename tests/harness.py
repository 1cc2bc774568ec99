"""An engine with all its stages inside the test process: the real loops, bus and control channels, in threads."""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from speculation.channels import Channels
from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice
from speculation.decisions.policy import choose_policy
from speculation.drafters.base import Drafter, DrafterWrapper, DraftSource, Maker
from speculation.drafters.build import sources_of
from speculation.drafters.guarded import GuardedDrafter
from speculation.drafters.none import NoDrafter
from speculation.drafters.switched import SwitchedDrafter
from speculation.engine import Engine
from workers.shared.bus import encode, open_socket
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig
from workers.shared.live.events import TraceEvent
from workers.shared.live.messages import Trace, Watch
from workers.shared.messages import (
    Abort,
    Failed,
    FromEngine,
    Generate,
    KeepAlive,
    Probe,
    Sampling,
    SpeculationCounts,
    Status,
    TokenLogprobs,
    Tokens,
)
from workers.shared.model_files.facts import read_facts
from workers.stage.launch import start_threads

_TIMEOUT_MS = 120_000


class SwitchableDrafter(DrafterWrapper):
    """Delegates to a drafter that a test may change between requests."""

    def __init__(self, anchors: tuple[int, ...] = ()) -> None:
        super().__init__(SwitchedDrafter(NoDrafter(), "none", ()))
        self.anchors = anchors

    def switch(self, drafter: Drafter) -> None:
        self._inner = drafter

    @property
    def current(self) -> Drafter:
        return self._inner


class Drafting:
    """The drafters of all slots of an engine."""

    def __init__(self, slots: int, anchors: tuple[int, ...]) -> None:
        self._listens = bool(anchors)
        self.settle: Callable[[], object] = lambda: None  # returns when nothing is under way any more
        self._inner = [SwitchableDrafter(anchors) for _ in range(slots)]
        self.guarded = [GuardedDrafter(inner) for inner in self._inner]
        self.may_fail = False

    @property
    def sources(self) -> set[DraftSource]:
        """What wakes the engine for those that are used now."""
        return sources_of(inner.current for inner in self._inner)

    def use(self, drafter: Drafter | Maker) -> None:
        """From now on, `drafter` for whatever slot, if it keeps nothing from one request to the next; or one each.

        No request may run where stages send hidden states, for those of the drafter before have to have arrived.
        """
        if self._listens:
            self.settle()
        for slot, (inner, guarded) in enumerate(zip(self._inner, self.guarded, strict=True)):
            chosen = drafter if isinstance(drafter, Drafter) else drafter(slot)
            inner.switch(chosen)
            if self._listens:
                guarded.anchors = chosen.anchors


@dataclass
class Result:
    """Everything the engine said of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    counts: SpeculationCounts | None = None
    cached: int = 0


class Client:
    """Speaks to an engine over its bus, as the API server does."""

    def __init__(self, context: "zmq.Context[Any]", bus: str) -> None:
        self._socket = open_socket(context, zmq.DEALER, bus, bind=False)
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._numbers = itertools.count(1)
        self.trace: list[TraceEvent] = []  # received so far

    def watch(self, *, snapshot: bool = False) -> None:
        """Asks for a trace, for some seconds."""
        self._socket.send(encode(Watch(snapshot)))

    def send(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling | None = None,
        stop_tokens: Sequence[int] = (),
        generated: Sequence[int] = (),
    ) -> str:
        """Submits a request and returns its id."""
        identifier = f"request-{next(self._numbers)}"
        sampling = sampling if sampling is not None else Sampling(seed=0, temperature=0)
        request = Generate(identifier, list(prompt), max_tokens, sampling, tuple(stop_tokens), tuple(generated))
        self._socket.send(encode(request))
        return identifier

    def abort(self, identifier: str) -> None:
        self._socket.send(encode(Abort(identifier)))

    def send_bytes(self, *parts: bytes) -> None:
        """Whatever a stranger may send."""
        self._socket.send_multipart(parts)

    def receive(self) -> Tokens | Failed | Status:
        """The next message that says something; fails the test after two minutes of silence."""
        while True:
            assert self._socket.poll(_TIMEOUT_MS), "the engine says nothing"
            message = self._decoder.decode(self._socket.recv())
            if isinstance(message, Trace):
                self.trace += message.events
            elif not isinstance(message, KeepAlive):
                return message

    def result(self, identifier: str, abort_after: int | None = None) -> Result:
        """Collects a request to its end; aborts it after at least so many tokens if asked to."""
        return self.results({identifier: abort_after})[identifier]

    def results(self, requests: Mapping[str, int | None]) -> dict[str, Result]:
        """Collects requests to their ends, each to be aborted after at least so many tokens, if any."""
        results = {identifier: Result() for identifier in requests}
        open_requests = set(requests)
        while open_requests:
            message = self.receive()
            if isinstance(message, Status) or message.id not in open_requests:
                continue
            result = results[message.id]
            if isinstance(message, Failed):
                result.error = message.error
                open_requests.discard(message.id)
                continue
            result.tokens += message.tokens
            result.logprobs += message.logprobs
            result.prompt_logprobs += message.prompt_logprobs
            result.cached += 0 if message.beginning is None else message.beginning.cached
            limit = requests[message.id]
            if message.finish is not None:
                result.finish, result.counts = message.finish, message.counts
                open_requests.discard(message.id)
            elif limit is not None and len(result.tokens) >= limit:
                self.abort(message.id)
        return results

    def generate(
        self, prompt: Sequence[int], max_tokens: int, sampling: Sampling | None = None, stop_tokens: Sequence[int] = ()
    ) -> Result:
        return self.result(self.send(prompt, max_tokens, sampling, stop_tokens))

    def status(self) -> Status:
        """A status that has been through every stage."""
        number = next(self._numbers)
        self._socket.send(encode(Probe(number)))
        while True:
            message = self.receive()
            if isinstance(message, Status) and message.number == number:
                return message

    def close(self) -> None:
        self._socket.close()


@dataclass
class LocalEngine:
    """A running engine and what a test needs of it."""

    client: Client
    drafting: Drafting
    engine: Engine
    thread: threading.Thread  # in which it runs
    vocab_size: int
    config: EngineConfig

    @property
    def split(self) -> tuple[int, ...]:
        return self.config.split


def inproc_endpoints(stages: int) -> Endpoints:
    """Endpoints that exist only inside one ZeroMQ context."""
    return Endpoints(
        bus="inproc://bus",
        results="inproc://results",
        control=tuple(f"inproc://control-{i}" for i in range(stages)),
        data=tuple(f"inproc://data-{i}" for i in range(stages)),
    )


@contextmanager
def local_engine(
    folder: Path,
    split: Sequence[int],
    anchors: tuple[int, ...] = (),
    *,
    drafts: int = 0,
    addresses: Mapping[str, str] | None = None,
    controller: Controller | None = None,
    maker: Maker | None = None,
    **settings: Any,
) -> Iterator[LocalEngine]:
    """Runs the model in `folder` with `split` layers a stage, tapped at `anchors`; `settings` go to `EngineConfig`.

    `drafts` is `num_speculative_tokens`; `addresses` replace some of the endpoints. Without a
    `controller`, whatever drafter the test uses always drafts. `maker` makes those that are used at first; if any has
    a source, the engine attends to it.
    """
    config = EngineConfig(
        model=str(folder),
        split=tuple(split),
        endpoints=msgspec.structs.replace(inproc_endpoints(len(split)), **(addresses or {})),
        transport="inprocess",
        max_model_len=settings.pop("max_model_len", 2048),
        drafter=DrafterConfig(always=True, num_speculative_tokens=drafts),
        **settings,
    )
    vocab_size = read_facts(folder).vocab_size
    context: zmq.Context[Any] = zmq.Context()
    drafting = Drafting(config.max_num_seqs, anchors)
    channels = Channels(context, config.endpoints)
    if maker is not None:
        drafting.use(maker)
        channels.attend(drafting.sources)
    controller = controller or Controller(config.stages, [Choice("test", listens=bool(anchors))])
    engine = Engine(config, vocab_size, choose_policy(config), drafting.guarded, channels, controller)
    failures: list[Exception] = []

    def run() -> None:
        try:
            engine.run()
        except Exception as error:  # noqa: BLE001 -- whatever it is, the test below must see it
            failures.append(error)

    thread = threading.Thread(target=run, name="rank 0", daemon=True)
    stages = start_threads(config, context)
    thread.start()
    client = Client(context, config.endpoints.bus)
    try:
        client.status()
        drafting.settle = client.status
        yield LocalEngine(client, drafting, engine, thread, vocab_size, config)
    finally:
        engine.stop()
        for running in (thread, *stages):
            running.join(timeout=30)
        client.close()
        channels.close()
        context.term()
    assert not failures, failures
    assert drafting.may_fail or not any(drafter.failures for drafter in drafting.guarded), "a drafter failed"

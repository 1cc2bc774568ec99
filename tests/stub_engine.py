"""Rank 0's end of the request bus with scripted tokens in place of a model: first in, first out, one at a time."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import zmq

from workers.shared.bus import encode, open_socket
from workers.shared.messages import (
    Abort,
    Beginning,
    ControllerStatus,
    EngineInfo,
    EngineStats,
    Failed,
    FromEngine,
    Generate,
    Probe,
    SpeculationCounts,
    StageTimings,
    Status,
    ToEngine,
    TokenLogprobs,
    Tokens,
)

INFO = EngineInfo(
    stages=2,
    split=(2, 2),
    drafter="none",
    delta=0,
    max_model_len=2048,
    vocab_size=400,
    rehearsal=False,
)
BEGINNING = Beginning(cached=0, ahead=3, queue_ns=4 * 10**9, prefill_ns=2 * 10**9)
CHOICE = ControllerStatus("none", {"none": 10.0})


@dataclass
class _Running:
    peer: bytes
    request: Generate
    tokens: deque[int]
    stop: bool  # whether the script ends in a stop token
    sent: int = 0


@dataclass
class StubEngine:
    """Runs in a thread of its own. Settings may be changed while it runs; they apply to the next message."""

    endpoint: str
    script: Callable[[Generate], list[int]]  # the tokens that would be generated without a limit
    info: EngineInfo = INFO
    fingerprint: dict[str, str] = field(default_factory=dict)
    batch: int = 1  # tokens a message
    pause_after: int | None = None  # tokens of a request after which it waits for an abort
    fail_after: int | None = None  # tokens of a request after which the engine gives it up
    silent: bool = False  # answers nothing at all, like a hung process
    calibrating: bool = False
    noise: bytes | None = None  # the answer to the next probe
    generates: list[Generate] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self._leave = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Binds and serves."""
        self._leave.clear()
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(bound,), daemon=True)
        self._thread.start()
        assert bound.wait(60)

    def stop(self) -> None:
        """Closes the socket without a word, as a killed process does."""
        if self._thread is not None:
            self._leave.set()
            self._thread.join(10)
            self._thread = None

    def wait(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Blocks until `condition` holds, which is looked at after every message."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout), f"generates={self.generates} aborts={self.aborts}"

    def _serve(self, bound: threading.Event) -> None:
        context = zmq.Context()
        socket = open_socket(context, zmq.ROUTER, self.endpoint, bind=True)
        bound.set()
        decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        queue: deque[_Running] = deque()
        try:
            while not self._leave.is_set():
                if socket.poll(1 if queue else 20):
                    peer, data = socket.recv_multipart()
                    with self.changed:
                        self._receive(socket, peer, decoder.decode(data), queue)
                        self.changed.notify_all()
                elif queue and not self.silent:
                    self._step(socket, queue)
        finally:
            socket.close(linger=0)
            context.term()

    def _receive(self, socket: "zmq.Socket[bytes]", peer: bytes, message: ToEngine, queue: deque[_Running]) -> None:
        if isinstance(message, Generate):
            self.generates.append(message)
            tokens = self.script(message)[len(message.generated) :]
            stops = [place for place, token in enumerate(tokens) if token in message.stop_tokens]
            end = min(stops[0] + 1 if stops else len(tokens), message.max_tokens - len(message.generated))
            queue.append(_Running(peer, message, deque(tokens[:end]), bool(stops) and stops[0] < end))
        elif isinstance(message, Abort):
            self.aborts.append(message.id)
            for running in [running for running in queue if running.request.id == message.id]:
                queue.remove(running)
                self._send(socket, peer, Tokens(message.id, [], finish="abort", counts=SpeculationCounts()))
        elif isinstance(message, Probe) and self.noise is not None:
            socket.send_multipart([peer, self.noise])
            self.noise = None
        elif isinstance(message, Probe) and not self.silent:
            self._send(socket, peer, self.status(message.number, len(queue)))

    def _step(self, socket: "zmq.Socket[bytes]", queue: deque[_Running]) -> None:
        running = queue[0]
        request = running.request
        if self.fail_after is not None and running.sent >= self.fail_after:
            queue.popleft()
            self._send(socket, running.peer, Failed(request.id, "stage 1 died"))
            return
        if self.pause_after is not None and running.sent >= self.pause_after:
            return
        tokens = [running.tokens.popleft() for _ in range(min(self.batch, len(running.tokens)))]
        running.sent += len(tokens)
        finish = None if running.tokens else "stop" if running.stop else "length"
        wanted = request.sampling.logprobs
        logprobs = [] if wanted is None else [_logprobs(token, wanted) for token in tokens]
        counts = None if finish is None else SpeculationCounts(cycles=running.sent)
        if finish is not None:
            queue.popleft()
        asked = request.sampling.prompt_logprobs
        first = running.sent == len(tokens) and asked is not None
        ahead = [_logprobs(token, asked or 0) for token in request.prompt[1:]] if first else []
        beginning = BEGINNING if running.sent == len(tokens) else None
        message = Tokens(request.id, tokens, logprobs, finish, counts, beginning, ahead)
        self._send(socket, running.peer, message)

    def status(self, number: int, open_requests: int) -> Status:
        """Figures that depend on the number of the probe alone."""
        timings = StageTimings(frames=10 * number, forward_ns=number * 10**9, idle_ns=number * 10**9)
        return Status(
            number=number,
            info=msgspec.structs.replace(self.info, fingerprint=self.fingerprint),
            running=min(1, open_requests),
            waiting=max(0, open_requests - 1),
            stats=EngineStats(
                counts=SpeculationCounts(drafted=3 * number, accepted=2 * number, rejected=number, cycles=4 * number),
                full_cycles=10 * number,
                full_cycle_ns=2 * number * 10**9,
                drafts=5 * number,
                draft_ns=number * 10**8,
            ),
            controller=CHOICE,
            stages=[timings] * self.info.stages,
            calibrating=self.calibrating,
        )

    @staticmethod
    def _send(socket: "zmq.Socket[bytes]", peer: bytes, message: FromEngine) -> None:
        socket.send_multipart([peer, encode(message)])


def _logprobs(token: int, count: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5, [(token if place == 0 else place, -0.5 - place) for place in range(count)])

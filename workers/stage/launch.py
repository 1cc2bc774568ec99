"""Builds stages from a configuration and runs them: one in this process, or all of them in threads of it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import zmq

from workers.decisions.patience import frame_limit
from workers.model.shard import available_bytes
from workers.rehearsal.assemble import rehearsed
from workers.sampling.sampler import Sampler
from workers.shared.bus import FREE_AGAIN, open_socket
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError, PeerLost
from workers.shared.fingerprint import engine_fingerprint, fingerprint_key
from workers.shared.grammar import Grammars, load_grammars
from workers.shared.links import Listener
from workers.shared.memory import by_device, check_fits, stage_needs
from workers.shared.messages import Failure, Ready, StageTimings
from workers.shared.model_files.facts import read_facts
from workers.shared.time_slices import settle
from workers.stage.channel import LinkChannel, open_channel
from workers.stage.compiler import GrammarCompiler
from workers.stage.load import load_layers, recorder_for
from workers.stage.loop import Stage
from workers.stage.parts import Layers, StageParts
from workers.stage.tail import Tail
from workers.stage.warm import kept_warm
from workers.transport.base import Inbound, Outbound
from workers.transport.distributed import DistributedEdges, DistributedInbound, DistributedOutbound
from workers.transport.incoming import Incoming
from workers.transport.inprocess import InProcessEdge
from workers.transport.unix import UnixInbound, UnixOutbound
from workers.transport.zeromq import ZmqInbound, ZmqOutbound

Edges = tuple[Inbound | None, Outbound | None]
Orphaned = Callable[[], bool]  # whether rank 0 has gone
EdgeMaker = Callable[[int, Layers, Orphaned], Edges]


def run_stage(
    config: EngineConfig,
    index: int,
    context: "zmq.Context[Any]",
    make_edges: EdgeMaker,
    recording: "Lock | None" = None,
) -> None:
    """Loads stage `index`, reports ready, and works until told to leave.

    Stages that share a process are given one lock, for recording. An error is reported to rank 0 before it is raised.
    """
    channel = open_channel(context, config.endpoints, index, config.stall_timeout)
    edges: Edges = (None, None)
    try:
        started = time.monotonic()
        shard = load_layers(config, index, channel, recorder_for(config, index, recording or Lock()))
        edges = make_edges(index, shard, lambda: channel.orphaned)
        if isinstance(channel, LinkChannel) and isinstance(edges[0], UnixInbound):
            channel.wake_for(edges[0].wait)
        settle()
        timings = StageTimings()
        parts = StageParts(shard, channel, *edges)
        if index == config.stages - 1:
            grammars = load_grammars(Path(config.model))
            parts.tail = make_tail(config, shard, grammars)
            parts.compiler = GrammarCompiler(grammars)
        parts = rehearsed(parts, config, timings)
        edges = parts.inbound, parts.outbound
        seconds = time.monotonic() - started
        if channel.orphaned:
            raise PeerLost("rank 0 has gone while this stage was loading")
        fingerprint = engine_fingerprint(config)
        channel.report(
            Ready(index, len(config.layers(index)), shard.weight_bytes, shard.kv_bytes, seconds, fingerprint)
        )
        with kept_warm(shard.device, timings, config.keep_warm):
            Stage(index, parts, timings).run()
    except Exception as error:  # reported whatever it is, and raised again
        if not channel.orphaned:  # the next rank 0 has nothing to do with it
            channel.report(Failure(index, f"{type(error).__name__}: {error}", isinstance(error, ConfigError)))
        raise
    finally:
        for edge in reversed(edges):
            if edge is not None:
                edge.close()
        channel.close()


def make_tail(config: EngineConfig, layers: Layers, grammars: Grammars | None) -> Tail:
    """The sampling head of the last stage, whose `layers` they are."""
    return Tail(layers, Sampler(read_facts(Path(config.model)).vocab_size, layers.device), grammars)


def network_edges(config: EngineConfig, context: "zmq.Context[Any]") -> EdgeMaker:
    """Edges between processes, by the configured transport."""

    key, limit = fingerprint_key(engine_fingerprint(config)), _edge_limit(config)

    def incoming(index: int, shard: Layers, orphaned: Orphaned) -> Incoming:
        return Incoming(key, index, shard.hidden_size, shard.dtype, shard.device, limit, orphaned)

    def over_zmq(index: int, shard: Layers, orphaned: Orphaned) -> Edges:
        endpoints, inbound, outbound = config.endpoints, None, None
        if index > 0:
            socket = open_socket(
                context,
                zmq.PULL,
                endpoints.data[index],
                bind=True,
                listen=endpoints.listen,
                token=endpoints.token,
                patience=FREE_AGAIN,
            )
            inbound = ZmqInbound(socket, incoming(index, shard, orphaned))
        if index < config.stages - 1:
            downstream = endpoints.data[index + 1]
            outbound = ZmqOutbound(open_socket(context, zmq.PUSH, downstream, bind=False, token=endpoints.token), key)
        return inbound, outbound

    def over_torch(index: int, shard: Layers, _: Orphaned) -> Edges:
        if shard.device.type == "cuda":
            torch.cuda.set_device(shard.device)
        edges = DistributedEdges(
            config.transport,
            config.endpoints.rendezvous,
            index,
            config.stages,
            ready=config.ready_timeout,
            timeout=limit,
        )
        inbound, outbound = None, None
        if edges.upstream is not None:
            inbound = DistributedInbound(
                edges, stage=index, hidden_size=shard.hidden_size, dtype=shard.dtype, device=shard.device
            )
        if edges.downstream is not None:
            outbound = DistributedOutbound(edges, index)
        return inbound, outbound

    def over_links(index: int, shard: Layers, orphaned: Orphaned) -> Edges:
        endpoints, inbound, outbound = config.endpoints, None, None
        if index > 0:
            listener = Listener(endpoints.data[index], f"stage {index - 1}")
            inbound = UnixInbound(listener, incoming(index, shard, orphaned))
        if index < config.stages - 1:
            outbound = UnixOutbound(endpoints.data[index + 1], key, index, limit)
        return inbound, outbound

    makers: dict[str, EdgeMaker] = {"unix": over_links, "zmq": over_zmq}
    return makers.get(config.transport, over_torch)


def _edge_limit(config: EngineConfig) -> float:
    """Seconds after which a stage gives up the one before by itself; rank 0, which sees more, will be sooner."""
    return frame_limit(config.stall_timeout, config.prefill_chunk, [StageTimings()] * config.stages)


def thread_edges(config: EngineConfig) -> EdgeMaker:
    """Edges between threads of this process."""
    edges = [InProcessEdge(i + 1, _edge_limit(config)) for i in range(config.stages - 1)]

    def between_threads(index: int, shard: Layers, _: Orphaned) -> Edges:
        return (edges[index - 1] if index > 0 else None), (edges[index] if index < config.stages - 1 else None)

    return between_threads


def start_threads(config: EngineConfig, context: "zmq.Context[Any]") -> list[threading.Thread]:
    """Runs every stage in a daemon thread of this process; a stage's failure reaches rank 0 as a message.

    Raises `ConfigError` where they do not fit together: each one alone sees all that is free.
    """
    stages = [] if config.hollow_stages else stage_needs(config)
    for (_, device), needs in by_device(stages).items():
        check_fits(needs, config.max_model_len, available_bytes(torch.device(device)))
    make_edges, recording = thread_edges(config), Lock()
    threads = [
        threading.Thread(
            target=run_stage, args=(config, i, context, make_edges, recording), name=f"stage {i}", daemon=True
        )
        for i in range(config.stages)
    ]
    for thread in threads:
        thread.start()
    return threads

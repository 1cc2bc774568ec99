"""Prometheus metrics of the engine and its stages, from the newest `Status`."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import asdict
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.client import EngineClient
from server.engine.rates import EngineFigures
from workers.shared.cascade.figures import ModelFigures
from workers.shared.messages import (
    DEPTHS,
    HIT_RANKS,
    ControllerStatus,
    EngineInfo,
    KvUse,
    SpeculationCounts,
    StageTimings,
    Status,
)

_NS = 1e9
_NANOSECONDS = "_ns"
# By the names of fields. One that is missing here fails tests/unit/server/test_engine_metrics.py.
_HELP: Mapping[str, str] = {
    "speculation_drafted": "Drafted tokens",
    "speculation_levels": "Times that a position got drafts, several where they branch",
    "speculation_accepted": "Drafts that were equal to the sampled token",
    "speculation_rejected": "Drafts that were not",
    "speculation_discarded": "Drafts that were never verified, or stood beside one that was",
    "speculation_sent": "Drafts that entered the pipeline",
    "speculation_moved": "Accepted drafts that were not the likeliest for their position, and were moved there",
    "speculation_cycles": "Pipeline cycles",
    "speculation_ranked": "Verified drafts whose candidates are known",
    "speculation_bounded": "Verified drafts of sampled tokens, with known probabilities",
    "speculation_bound": "Sum over these of the best acceptance there could be, sum min(p, q)",
    "full_cycles": "Cycles timed with the pipeline full",
    "full_cycle_ns": "Time of the full cycles",
    "drafts": "Drafts asked for",
    "draft_ns": "Time the drafter took over them",
    "drafter_failures": "Failures of the drafter, each silencing it for a while",
    "prefix_cache_queries": "Prompt tokens that might have been held already, of requests that began",
    "prefix_cache_hits": "Prompt tokens that were held already, and were not computed again",
    "decode_ns": "Time between first and last token of requests",
    "commit_ns": "Rank 0's time for samples, without announcements",
    "announce_ns": "Rank 0's time for control messages",
}
_OF_MODELS: Mapping[str, str] = {
    "written": "Tokens that a model of the cascade has written itself",
    "verifications": "Its passes over drafts of the next smaller model",
    "plain": "Its steps without drafts to verify",
    "judged": "Drafts of the next smaller model that were found right or wrong",
    "accepted": "Those that were right",
    "waiting": "Drafts that waited at the beginning of verifications, in sum",
    "adopted": "Tokens taken over from the next bigger model",
    "undone": "Tokens that the next bigger model has contradicted, and what followed them",
    "filled": "Rows computed for tokens that it had not written",
    "busy_ns": "Time spent computing",
    "total_ns": "Time since its process started",
}


class EngineCollector(Collector):
    """Reads the client's newest figures at each scrape."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def collect(self) -> Iterable[Metric]:
        """All engine metrics; of an engine that has not answered yet, only that it is down."""
        yield _gauge("engine_up", "Whether the engine answers", float(self._client.healthy))
        yield _gauge("open_sequences", "Sequences the server has opened", float(self._client.open_sequences))
        yield _counter("resumed_sequences", "Sequences that went on in another engine", float(self._client.resumed))
        figures = self._client.figures
        if figures.status is not None:
            yield from engine_metrics(figures, figures.status)


def engine_metrics(figures: EngineFigures, status: Status) -> Iterator[Metric]:
    """Metrics of one `Status` and the rates that go with it."""
    yield _gauge("num_requests_running", "Sequences in the pipeline", status.running)
    yield _gauge("num_requests_waiting", "Sequences queued in the engine", status.waiting)
    yield _credits(status.credits)
    yield from _kv(status.kv)
    yield from _counters(status.stats.counts, "speculation_")
    yield from (_hits(status.stats.counts), *_depths(status.stats.counts))
    yield from _counters(status.stats)
    yield from _counters(status.stats.rank)
    yield _counter("dropped_messages", "Messages that rank 0 could not read", status.dropped)
    yield from _controller(status.controller)
    yield from _rates(figures)
    yield from _stages(status.stages)
    yield from _models(status.models)
    yield _info(status.info)


def _credits(in_use: Mapping[str, int]) -> Metric:
    metric = GaugeMetricFamily(
        "echelon:credits_in_use",
        "Frames in flight: with verified tokens, drafts, or pieces of prompts",
        labels=["kind"],
    )
    for kind, count in in_use.items():
        metric.add_metric([kind], count)
    return metric


def _kv(kv: KvUse) -> Iterator[Metric]:
    used = kv.running / kv.total if kv.total else 0.0
    yield _gauge("kv_cache_usage_perc", "KV positions of running requests; 1 is all there are", used)
    positions = GaugeMetricFamily(
        "echelon:kv_cache_positions",
        "KV positions: of running requests, kept in idle slots for prompts that begin alike, or neither",
        labels=["use"],
    )
    for use, count in (("running", kv.running), ("kept", kv.kept), ("free", kv.total - kv.running - kv.kept)):
        positions.add_metric([use], count)
    yield positions


def _controller(controller: ControllerStatus) -> Iterator[Metric]:
    choice = GaugeMetricFamily("echelon:speculation_choice", "1 for what drafts now", labels=["drafter"])
    rates = GaugeMetricFamily(
        "echelon:speculation_predicted_tokens_per_second", "What each choice should do", labels=["drafter"]
    )
    for name, rate in controller.predicted.items():
        choice.add_metric([name], float(name == controller.choice))
        rates.add_metric([name], rate)
    yield from (choice, rates)
    yield _counter("speculation_switches", "Changes from one choice to another", controller.switches)
    yield _counter("speculation_probes", "Trials of choices that were not thought the best", controller.probes)


def _counters(struct: Struct, prefix: str = "") -> Iterator[Metric]:
    """A counter for each number that `struct` holds, in seconds where it is in nanoseconds."""
    for name, value in asdict(struct).items():
        if isinstance(value, int | float):
            text = _HELP[prefix + name]
            if name.endswith(_NANOSECONDS):
                yield _counter(f"{prefix}{name.removesuffix(_NANOSECONDS)}_seconds", text, value / _NS)
            else:
                yield _counter(prefix + name, text, value)


def _hits(counts: SpeculationCounts) -> Metric:
    hits = CounterMetricFamily(
        "echelon:speculation_hits", "Verified tokens among the drafter's first candidates", labels=["candidates"]
    )
    for width, count in zip(HIT_RANKS, counts.hits, strict=True):
        hits.add_metric([str(width)], count)
    return hits


def _depths(counts: SpeculationCounts) -> Iterator[Metric]:
    for name, text, found in (
        ("judged", "Drafts that were judged, by how many had to be right for them to be of use", counts.judged_at),
        ("accepted", "Those that were right", counts.accepted_at),
    ):
        metric = CounterMetricFamily(f"echelon:speculation_{name}_by_depth", text, labels=["depth"])
        for depth, count in zip(DEPTHS, found, strict=True):
            metric.add_metric([str(depth)], count)
        yield metric


def _rates(figures: EngineFigures) -> Iterator[Metric]:
    ratio = GaugeMetricFamily("echelon:stage_busy_ratio", "Share of the last second spent on frames", labels=["stage"])
    for stage, value in enumerate(figures.busy_ratio):
        ratio.add_metric([str(stage)], value)
    yield ratio
    if figures.cycle_seconds is not None:
        yield _gauge("cycle_seconds", "Mean full cycle, when the pipeline was last full", figures.cycle_seconds)
    if figures.fixed_cost_seconds is not None:
        yield _gauge(
            "fixed_cost_seconds", "Mean full cycle minus the slowest stage's time a frame", figures.fixed_cost_seconds
        )


def _stages(stages: Iterable[StageTimings]) -> Iterator[Metric]:
    seconds = CounterMetricFamily(
        "echelon:stage_seconds", "Time of each stage, by what it did", labels=["stage", "phase"]
    )
    frames = CounterMetricFamily(
        "echelon:stage_frames", "Frames of each stage, computed or skipped", labels=["stage", "outcome"]
    )
    tokens = CounterMetricFamily("echelon:stage_tokens", "Tokens in computed frames", labels=["stage"])
    for number, timings in enumerate(stages):
        stage = str(number)
        for name, value in asdict(timings).items():
            if name.endswith(_NANOSECONDS):
                seconds.add_metric([stage, name.removesuffix(_NANOSECONDS)], value / _NS)
        frames.add_metric([stage, "computed"], timings.frames)
        frames.add_metric([stage, "skipped"], timings.skipped)
        tokens.add_metric([stage], timings.tokens)
    yield from (seconds, frames, tokens)


def _models(models: Iterable[ModelFigures]) -> Iterator[Metric]:
    """Of a cascade: a counter for each figure of its models, which are numbered from the smallest on."""
    metrics: dict[str, CounterMetricFamily] = {}
    for number, figures in enumerate(models):
        for name, text in _OF_MODELS.items():
            seconds = name.endswith(_NANOSECONDS)
            series = f"{name.removesuffix(_NANOSECONDS)}_seconds" if seconds else name
            metric = metrics.setdefault(
                name, CounterMetricFamily(f"echelon:cascade_{series}", text, labels=["model", "name"])
            )
            value = getattr(figures, name)
            metric.add_metric([str(number), figures.name], value / _NS if seconds else value)
    yield from metrics.values()


def _info(info: EngineInfo) -> Metric:
    labels = {
        "stages": str(info.stages),
        "split": ",".join(map(str, info.split)),
        "drafter": info.drafter,
        "delta": str(info.delta),
        "num_speculative_tokens": str(info.num_speculative_tokens),
        "tokens_per_frame": str(info.tokens_per_frame),
        "tree_width": str(info.tree_width),
        "max_model_len": str(info.max_model_len),
        "vocab_size": str(info.vocab_size),
        "rehearsal": str(info.rehearsal).lower(),
        **{f"emulated_{name}": _spelled(value) for name, value in asdict(info.emulated).items()},
    }
    metric = GaugeMetricFamily("echelon:engine_info", "What the engine serves", labels=list(labels))
    metric.add_metric(list(labels.values()), 1.0)
    return metric


def _spelled(value: float | tuple[float, ...]) -> str:
    return ",".join(f"{one:g}" for one in value) if isinstance(value, tuple) else f"{value:g}"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"echelon:{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"echelon:{name}", text, value=value)

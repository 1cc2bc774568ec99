"""What /metrics says of an engine: every figure of its status, by its field's name."""

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from server.engine.rates import EngineFigures
from server.metrics.engine import engine_metrics
from tests.stub_engine import INFO
from workers.shared.cascade.figures import ModelFigures
from workers.shared.messages import (
    DEPTHS,
    ControllerStatus,
    EngineStats,
    KvUse,
    RankTimings,
    SpeculationCounts,
    StageTimings,
    Status,
)


class Scrape:
    """A collector of one status."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> list[Metric]:
        figures = EngineFigures()
        figures.update(self._status)
        return list(engine_metrics(figures, self._status))


def series(status: Status) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(Scrape(status))  # type: ignore[arg-type]
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_every_figure_of_every_model_of_a_cascade_is_there() -> None:
    models = [ModelFigures("small", "cpu", *range(1, 10), 5 * 10**9, 10**10), ModelFigures("middle", written=3)]
    choice = ControllerStatus("cascade", {})
    found = series(Status(1, INFO, 0, 0, EngineStats(), choice, [], models=models))
    for name in set(ModelFigures.__struct_fields__) - {"name", "device", "busy_ns", "total_ns"}:
        assert found[f'echelon:cascade_{name}_total{{model="0",name="small"}}'] == getattr(models[0], name)
    assert found['echelon:cascade_busy_seconds_total{model="0",name="small"}'] == 5
    assert found['echelon:cascade_total_seconds_total{model="0",name="small"}'] == 10
    assert found['echelon:cascade_written_total{model="1",name="middle"}'] == 3
    assert (models[0].busy, models[1].acceptance) == (0.5, None)


def test_every_figure_is_there_in_the_units_of_prometheus() -> None:
    counts = SpeculationCounts(*range(1, 9), hits=[0, 1, 2, 3, 4], bounded=8, bound=6.5)
    for depth in (1, 5, 6, 99):
        counts.judge(depth, right=depth < 6)
    rank = RankTimings(10**9, 2 * 10**9, 3 * 10**9)
    stats = EngineStats(counts, full_cycles=9, full_cycle_ns=5 * 10**8, drafts=3, draft_ns=10**8, rank=rank)
    stats.prefix_cache_queries, stats.prefix_cache_hits = 50, 40
    stages = [StageTimings(*(stage * 10**9 + field for field in range(9))) for stage in (1, 2)]
    choice = ControllerStatus("ngram", {"none": 10.0, "ngram": 12.5}, switches=3, probes=1)
    in_use = {"certain": 2, "draft": 1}
    found = series(Status(1, INFO, 1, 2, stats, choice, stages, dropped=7, credits=in_use, kv=KvUse(100, 25, 10)))
    assert found["echelon:num_requests_running"] == 1
    assert found["echelon:num_requests_waiting"] == 2
    assert found['echelon:credits_in_use{kind="certain"}'] == 2
    assert found['echelon:credits_in_use{kind="draft"}'] == 1
    assert found["echelon:kv_cache_usage_perc"] == 0.25
    assert [found[f'echelon:kv_cache_positions{{use="{use}"}}'] for use in ("running", "kept", "free")] == [25, 10, 65]
    assert found["echelon:prefix_cache_queries_total"] == 50
    assert found["echelon:prefix_cache_hits_total"] == 40
    assert found["echelon:dropped_messages_total"] == 7
    assert found['echelon:speculation_choice{drafter="none"}'] == 0
    assert found['echelon:speculation_choice{drafter="ngram"}'] == 1
    assert found['echelon:speculation_predicted_tokens_per_second{drafter="ngram"}'] == 12.5
    assert found["echelon:speculation_switches_total"] == 3
    assert found["echelon:speculation_probes_total"] == 1
    for name in set(SpeculationCounts.__struct_fields__) - {"hits", "judged_at", "accepted_at"}:
        assert found[f"echelon:speculation_{name}_total"] == getattr(counts, name)
    assert found['echelon:speculation_hits_total{candidates="4"}'] == 2
    deep = {depth: found[f'echelon:speculation_judged_by_depth_total{{depth="{depth}"}}'] for depth in DEPTHS}
    assert deep == {1: 1, 2: 0, 3: 0, 4: 0, 6: 2, 8: 0, 12: 0, 16: 1}
    assert found['echelon:speculation_accepted_by_depth_total{depth="6"}'] == 1
    assert (found["echelon:full_cycles_total"], found["echelon:drafts_total"]) == (9, 3)
    assert (found["echelon:full_cycle_seconds_total"], found["echelon:draft_seconds_total"]) == (0.5, 0.1)
    for seconds, name in enumerate(("decode", "commit", "announce"), 1):
        assert found[f"echelon:{name}_seconds_total"] == seconds
    for number, timings in enumerate(stages):
        for field, value in msgspec.structs.asdict(timings).items():
            if field.endswith("_ns"):
                name = f'echelon:stage_seconds_total{{phase="{field.removesuffix("_ns")}",stage="{number}"}}'
                assert found[name] == value / 1e9
        assert found[f'echelon:stage_frames_total{{outcome="computed",stage="{number}"}}'] == timings.frames
        assert found[f'echelon:stage_frames_total{{outcome="skipped",stage="{number}"}}'] == timings.skipped
        assert found[f'echelon:stage_tokens_total{{stage="{number}"}}'] == timings.tokens

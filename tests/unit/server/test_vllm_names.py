"""Series under vLLM's names: the same values, and histograms that stay whole."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from server.engine.rates import EngineFigures
from server.metrics.engine import engine_metrics
from server.metrics.labelled import Labelled
from server.metrics.requests import RequestMetrics
from server.metrics.vllm_names import VllmNames
from tests.stub_engine import CHOICE, INFO
from workers.shared.messages import EngineStats, KvUse, SpeculationCounts, Status

ASKED_FOR = {  # by vLLM's own board, the production stack, and pickers of the Gateway API
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:request_time_per_output_token_seconds_sum",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_count",
    "vllm:request_decode_time_seconds_bucket",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
}


class Fixed:
    """An engine that never changes."""

    def collect(self):  # type: ignore[no-untyped-def]
        counts = SpeculationCounts(drafted=9, accepted=7)
        status = Status(1, INFO, 3, 2, EngineStats(counts), CHOICE, [], kv=KvUse(total=8, running=2))
        return engine_metrics(EngineFigures(), status)


def test_what_vllms_boards_ask_for_is_there() -> None:
    metrics = RequestMetrics()
    metrics.finished.labels("stop").inc()
    metrics.time_to_first_token.observe(0.07)
    metrics.registry.register(Fixed())  # type: ignore[arg-type]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(VllmNames(Labelled(metrics.registry, "m")))
    text = generate_latest(registry).decode()
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["model_name"] == "m"
    }
    assert {name for name, _ in samples} >= ASKED_FOR
    aliases = {name for name, _ in samples if name.startswith("vllm:") and "spec_decode" not in name}
    assert {name.replace("vllm:", "echelon:") for name in aliases} <= {name for name, _ in samples}
    for name, bound in samples:
        if name in aliases:
            assert samples[name, bound] == samples[name.replace("vllm:", "echelon:"), bound]
    assert samples["vllm:spec_decode_num_draft_tokens_total", None] == 9
    assert samples["vllm:num_requests_waiting", None] == 2
    assert samples["vllm:kv_cache_usage_perc", None] == 0.25
    assert samples["vllm:time_to_first_token_seconds_bucket", "0.1"] == 1

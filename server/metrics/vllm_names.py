"""Metrics under vLLM's names too, for boards and gateway pickers made for those."""

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_OURS, _THEIRS = "echelon:", "vllm:"
# Where theirs differ beyond the prefix. Drafts of one token: each is a draft and a draft token.
_OTHER_NAMES = {
    "speculation_drafted": ("spec_decode_num_draft_tokens", "spec_decode_num_drafts"),
    "speculation_accepted": ("spec_decode_num_accepted_tokens",),
}
_SAME_NAMES = frozenset(
    {
        "e2e_request_latency_seconds",
        "generation_tokens",
        "inter_token_latency_seconds",
        "kv_cache_usage_perc",
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_hits",
        "prefix_cache_queries",
        "prompt_tokens",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_inference_time_seconds",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_queue_time_seconds",
        "request_success",
        "request_time_per_output_token_seconds",
        "time_to_first_token_seconds",
    }
)


class VllmNames(Collector):
    """What another collector has, and what vLLM has of it under vLLM's names."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner

    def collect(self) -> Iterable[Metric]:
        """The metrics of the other collector, and their aliases."""
        for metric in self._inner.collect():
            yield metric
            name = metric.name.removeprefix(_OURS)
            for other in _OTHER_NAMES.get(name, (name,) if name in _SAME_NAMES else ()):
                yield _renamed(metric, _THEIRS + other)


def _renamed(metric: Metric, name: str) -> Metric:
    alias = Metric(name, metric.documentation, metric.type, metric.unit)
    alias.samples = [sample._replace(name=name + sample.name.removeprefix(metric.name)) for sample in metric.samples]
    return alias

"""Prometheus metrics of requests, named as vLLM names them; `server.metrics.engine` adds those of the engine."""

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
_LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_PLACES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class RequestMetrics:
    """Counters and histograms in a registry of their own."""

    def __init__(self) -> None:
        # Tools that add up whatever ends in a number would count the `_created` series too.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.finished = Counter(
            "echelon:request_success",
            "Choices that ended, by reason: stop, length, abort (the client left) or error",
            ["finished_reason"],
            registry=self.registry,
        )
        self.refused = Counter(
            "echelon:request_refused", "Responses with an error status", ["status"], registry=self.registry
        )
        self.prompt_tokens = Counter("echelon:prompt_tokens", "Prompt tokens accepted", registry=self.registry)
        self.generation_tokens = Counter("echelon:generation_tokens", "Tokens generated", registry=self.registry)
        self.time_to_first_token = Histogram(
            "echelon:time_to_first_token_seconds",
            "From the arrival of a request to its first token",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.inter_token_latency = Histogram(
            "echelon:inter_token_latency_seconds",
            "Between consecutive tokens of a choice; tokens that arrive together share the time",
            buckets=_TOKEN_SECONDS,
            registry=self.registry,
        )
        self.time_per_output_token = Histogram(
            "echelon:request_time_per_output_token_seconds",
            "Mean time of a token after the first, a choice",
            buckets=_TOKEN_SECONDS,
            registry=self.registry,
        )
        self.queue_time = self._seconds(
            "request_queue_time", "From a choice's arrival in the engine until it had a slot"
        )
        self.prefill_time = self._seconds("request_prefill_time", "From there to its first token")
        self.decode_time = self._seconds("request_decode_time", "From its first token to its last")
        self.inference_time = self._seconds("request_inference_time", "From its slot to its last token")
        self.queue_position = Histogram(
            "echelon:request_queue_position",
            "Choices that would start before one when it arrived",
            buckets=_PLACES,
            registry=self.registry,
        )
        self.request_prompt_tokens = Histogram(
            "echelon:request_prompt_tokens", "Prompt tokens of a request", buckets=_LENGTHS, registry=self.registry
        )
        self.request_generation_tokens = Histogram(
            "echelon:request_generation_tokens", "Tokens of a choice", buckets=_LENGTHS, registry=self.registry
        )
        self.e2e_latency = Histogram(
            "echelon:e2e_request_latency_seconds",
            "From the arrival of a request to the end of its last choice",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(f"echelon:{name}_seconds", text, buckets=_SECONDS, registry=self.registry)

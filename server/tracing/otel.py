"""Spans to an OpenTelemetry collector, over HTTP; from a thread, in batches, so that no request waits for it."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from server.tracing.spans import RequestSpan
from workers.shared.errors import ConfigError

if TYPE_CHECKING:  # an extra that is not always installed
    from opentelemetry.sdk.trace.export import SpanExporter

_NS = 1e9
_LAST_WORDS_MS = 1000
_NAME = "llm_request"


class OtelSpans:
    """A `SpanSink`. Raises `ConfigError` where the libraries are not installed."""

    def __init__(self, service_name: str, clock: Callable[[], float], exporter: "Callable[[], SpanExporter]") -> None:
        """`clock` is the one that spans go by; `exporter` makes what sends them."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise _missing(error) from error
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service_name}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter()))
        self._tracer = self._provider.get_tracer("echelon")
        self._clock = clock

    @classmethod
    def to(cls, endpoint: str, service_name: str, clock: Callable[[], float]) -> "OtelSpans":
        """Spans to the collector at `endpoint`, such as http://127.0.0.1:4318/v1/traces."""

        def over_http() -> "SpanExporter":
            try:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            except ImportError as error:
                raise _missing(error) from error
            return OTLPSpanExporter(endpoint=endpoint)

        return cls(service_name, clock, over_http)

    def ended(self, span: RequestSpan) -> None:
        """See `SpanSink`."""
        from opentelemetry import trace
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        behind = time.time() - self._clock()

        def wall(moment: float) -> int:
            return int((moment + behind) * _NS)

        caller = TraceContextTextMapPropagator().extract(dict(span.headers))
        whole = self._tracer.start_span(
            _NAME, caller, SpanKind.SERVER, dict(span.attributes), start_time=wall(span.start)
        )
        inside = trace.set_span_in_context(whole)
        for phase in span.phases:
            child = self._tracer.start_span(f"{_NAME}.{phase.name}", inside, start_time=wall(phase.start))
            child.end(wall(phase.end))
        if span.error is not None:
            whole.set_status(StatusCode.ERROR, span.error)
        whole.end(wall(span.end))

    def close(self) -> None:
        """See `SpanSink`."""
        self._provider.force_flush(_LAST_WORDS_MS)
        self._provider.shutdown()


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"--otlp-traces-endpoint needs the extra 'otel': pip install 'echelon[otel]' ({error})")

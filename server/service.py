"""What every route works with, and how the engine's troubles become OpenAI errors."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from server.engine.client import DeadlineExceeded, EngineClient, EngineFailed, EngineUnavailable, QueueFull
from server.engine.request_names import RequestNames
from server.errors import ApiError
from server.metrics.requests import RequestMetrics
from server.preparation.chat_model import ChatModels
from server.preparation.prepare import Preparation
from server.preparation.sequences import Limits
from server.settings import ServerSettings
from server.structured_output.compile import GrammarChecker
from server.tokenizer import ModelTokenizer
from server.tracing.otel import OtelSpans
from server.tracing.spans import SpanSink
from workers.shared.fingerprint import server_fingerprint


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one running server."""

    settings: ServerSettings
    tokenizer: ModelTokenizer
    preparation: Preparation
    engine: EngineClient
    metrics: RequestMetrics
    spans: SpanSink | None = None
    names: RequestNames = field(default_factory=RequestNames)
    clock: Callable[[], float] = field(default=time.monotonic)  # seconds

    @classmethod
    def load(cls, settings: ServerSettings) -> "Service":
        """Reads the model folder; raises `ConfigError`. The engine client still has to be started."""
        folder = Path(settings.model)
        tokenizer = ModelTokenizer(folder)
        engine = EngineClient(
            settings.bus,
            max_queue=settings.max_queue,
            health_timeout=settings.health_timeout,
            clock=time.monotonic,
            token=settings.token,
            fingerprint=server_fingerprint(folder),
            resume_attempts=settings.resume_attempts if settings.on_failure == "resume" else 0,
            resume_timeout=settings.resume_timeout if settings.on_failure == "resume" else 0.0,
        )
        template = None if settings.chat_template is None else Path(settings.chat_template)
        chat_models = ChatModels.load(folder, tokenizer, template, settings.tool_call_parser)
        preparation = Preparation(tokenizer, chat_models, GrammarChecker(folder))
        traces = settings.otlp_traces_endpoint
        spans = None if traces is None else OtelSpans.to(traces, "echelon", time.monotonic)
        return cls(settings, tokenizer, preparation, engine, RequestMetrics(), spans)

    def check_model(self, model: str) -> None:
        """Raises a 404 `ApiError` unless `model` is the one that is served."""
        if model != self.settings.served_model_name:
            raise ApiError(
                404,
                f"The model '{model}' does not exist; this server has '{self.settings.served_model_name}'",
                param="model",
                code="model_not_found",
            )

    def limits(self) -> Limits:
        """Limits of the running engine; raises `ApiError` while there is none."""
        with engine_errors():
            info = self.engine.info
        by_priority = self.settings.scheduling_policy == "priority"
        return Limits(info.max_model_len, info.vocab_size, self.tokenizer.eos_ids, by_priority)

    @property
    def rehearsal(self) -> bool:
        """Whether the running engine takes drafts by chance."""
        status = self.engine.figures.status
        return status is not None and status.info.rehearsal


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turns errors of the engine into `ApiError`."""
    try:
        yield
    except EngineUnavailable as error:
        raise ApiError(503, str(error), code="engine_unavailable", headers={"Retry-After": "5"}) from error
    except DeadlineExceeded as error:
        raise ApiError(504, str(error), code="deadline_exceeded") from error
    except EngineFailed as error:
        raise ApiError(500, f"the engine gave up this request: {error}", code="engine_failed") from error
    except QueueFull as error:
        again = {"Retry-After": str(error.retry_after)}
        raise ApiError(
            429, f"the queue is full ({error}); try again later", code="queue_full", headers=again
        ) from error

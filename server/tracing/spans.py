"""What is told of one request to a tracing system: a span, and a child a phase. No library, no clock.

Names are those of vLLM, `gen_ai.*`, and `echelon.*` where it has none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workers.shared.messages import Beginning, SpeculationCounts

_NS = 1e9

Value = str | int | float | Sequence[str]


@dataclass(frozen=True)
class Phase:
    """A part of a request; seconds of the service's clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class RequestSpan:
    """One HTTP request, from its arrival to the end of its last choice."""

    start: float  # seconds of the service's clock
    end: float
    attributes: Mapping[str, Value]
    phases: Sequence[Phase] = ()
    error: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # with the caller's `traceparent`, if it sent one


class SpanSink(Protocol):
    """Where spans go."""

    def ended(self, span: RequestSpan) -> None:
        """Takes a span; never waits."""

    def close(self) -> None:
        """Sends what has not been sent, for a moment."""


@dataclass(frozen=True)
class ChoiceTimes:
    """When a choice had its tokens, seconds of the service's clock, and how it came to the first."""

    first: float
    last: float
    beginning: Beginning | None


def phases(choices: Iterable[ChoiceTimes]) -> list[Phase]:
    """Queue, prefill and decode: of all choices together, from the first that began to the last that ended."""
    parts: dict[str, list[tuple[float, float]]] = {"queue": [], "prefill": [], "decode": []}
    for choice in choices:
        if choice.beginning is not None:
            begun = choice.first - choice.beginning.prefill_ns / _NS
            parts["queue"].append((begun - choice.beginning.queue_ns / _NS, begun))
            parts["prefill"].append((begun, choice.first))
        parts["decode"].append((choice.first, choice.last))
    return [
        Phase(name, min(start for start, _ in spans), max(end for _, end in spans))
        for name, spans in parts.items()
        if spans
    ]


def latencies(arrived: float, ended: float, found: Sequence[Phase]) -> dict[str, Value]:
    """Attributes in seconds; of phases that did not come, none."""
    lengths = {phase.name: phase.end - phase.start for phase in found}
    names = {"queue": "time_in_queue", "prefill": "time_in_model_prefill", "decode": "time_in_model_decode"}
    told: dict[str, Value] = {
        f"gen_ai.latency.{name}": lengths[phase] for phase, name in names.items() if phase in lengths
    }
    if "decode" in lengths:
        decode = next(phase for phase in found if phase.name == "decode")
        told["gen_ai.latency.time_to_first_token"] = decode.start - arrived
        told["gen_ai.latency.time_in_model_inference"] = lengths.get("prefill", 0.0) + lengths["decode"]
    return told | {"gen_ai.latency.e2e": ended - arrived}


def speculation(counts: SpeculationCounts) -> dict[str, Value]:
    """What drafting did for the request."""
    return {
        "echelon.speculation.drafted": counts.drafted,
        "echelon.speculation.accepted": counts.accepted,
        "echelon.speculation.cycles": counts.cycles,
    }

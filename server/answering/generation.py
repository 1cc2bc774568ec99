"""One HTTP request's sequences on their way back: the single source of events for streams and whole responses."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from types import MappingProxyType

from msgspec import UNSET, UnsetType

from server.engine.client import DeadlineExceeded, EngineUnavailable
from server.output.assembler import Assembler, Delta, shown_prompt
from server.preparation.sequences import PreparedRequest
from server.protocol.completion_objects import CompletionTokensDetails, PromptTokensDetails, Usage
from server.service import Service
from server.tracing.spans import ChoiceTimes, RequestSpan, latencies, phases, speculation
from workers.shared.messages import Beginning, SpeculationCounts, Tokens

_NS = 1e9

log = logging.getLogger("echelon.request")


class Generation:
    """Opened sequences. `close` must be called in every case; it aborts what has not ended and writes the log line.

    Raises `EngineUnavailable` or `QueueFull` on construction, before anything is sent to the client.
    """

    def __init__(
        self,
        service: Service,
        request: PreparedRequest,
        arrived: float,
        name: str,
        caller: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Of the HTTP request that goes by `name` and arrived at `arrived` (service clock).

        `caller` are the headers that say which trace it belongs to.
        """
        self.request = request
        self.name = name
        self._metrics = service.metrics
        self._clock = service.clock
        self._spans = service.spans
        self._caller = caller
        self._model = service.settings.served_model_name
        self._counts = SpeculationCounts()
        self._arrived = arrived  # seconds, by the service's clock
        reading = request.reading
        decode = service.tokenizer.decode_keeping(reading.kept) if reading.kept else service.tokenizer.decode
        self._choices = {
            generate.id: Assembler(
                index,
                decode,
                request.stops,
                request.min_tokens,
                reading.reader(),
                before=generate.prompt if request.continues else (),
            )
            for index, generate in enumerate(request.generates)
        }
        self._decode = decode
        self._begun: set[str] = set()  # choices whose first message has come
        self._beginnings: dict[str, Beginning] = {}  # of choices that have had their first token
        self._first_token: dict[str, float] = {}
        self._last_token: dict[str, float] = {}
        self._failure: Exception | None = None
        self._cached = 0  # tokens
        self._closed = False
        service.names.remember(self._choices, name)
        self._submission = service.engine.submit(request.generates)
        self._deadline = self._set_deadline(service.settings.request_timeout)
        self._metrics.prompt_tokens.inc(request.prompt_tokens)
        self._metrics.request_prompt_tokens.observe(request.prompt_tokens)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Events of all choices in the order they arrive; raises `EngineUnavailable`, `EngineFailed` or
        `DeadlineExceeded`.
        """
        try:
            while any(choice.finish is None for choice in self._choices.values()):
                message = await self._submission.get()
                choice = self._choices[message.id]
                if choice.finish is not None:
                    continue  # what was on its way when a stop string ended the choice
                if message.finish == "abort":
                    raise EngineUnavailable("the engine has aborted the request")
                delta = self._push(message)
                if message.beginning is not None:
                    self._note(message.id, delta.index, message.beginning)
                if message.counts is not None:
                    self._counts.add(message.counts)
                if choice.stopped_early:
                    self._submission.abort(message.id)
                self._measure(message.id, delta)
                yield delta
        except Exception as error:
            # Whatever it is, the choices that had not ended have failed; the caller reports it.
            self._failure = error
            raise

    def _note(self, sequence: str, index: int, beginning: Beginning) -> None:
        """Of a choice whose first token has come."""
        self._beginnings[sequence] = beginning
        if index % self.request.n == 0:  # a prompt counts once, however many choices it has
            self._cached += beginning.cached
        self._metrics.queue_position.observe(beginning.ahead)
        self._metrics.queue_time.observe(beginning.queue_ns / _NS)
        self._metrics.prefill_time.observe(beginning.prefill_ns / _NS)

    def _push(self, message: Tokens) -> Delta:
        choice, request = self._choices[message.id], self.request
        tokens = [] if request.echo_only else message.tokens
        delta = choice.push(tokens, message.logprobs, message.finish)
        if not request.echoes_logprobs or message.id in self._begun:
            return delta
        self._begun.add(message.id)
        prompt = request.generates[delta.index].prompt
        return replace(delta, prompt=shown_prompt(prompt, message.prompt_logprobs, self._decode))

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        completion = sum(choice.count for choice in self._choices.values())
        reasoning = sum(choice.reasoning for choice in self._choices.values())
        prompt = self.request.prompt_tokens
        return Usage(
            prompt,
            completion,
            prompt + completion,
            PromptTokensDetails(self._cached),
            CompletionTokensDetails(reasoning),
        )

    @property
    def chunk_usage(self) -> Usage | UnsetType | None:
        """What a chunk says of usage: nothing unless it was asked for, and nothing yet unless of every chunk."""
        if self.request.continuous_usage:
            return self.usage
        return None if self.request.include_usage else UNSET

    def close(self) -> None:
        """Aborts the sequences that have not ended; may be called again."""
        if self._closed:
            return
        self._closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._submission.close()
        ended = self._clock()
        seconds = ended - self._arrived
        other = "abort" if self._failure is None else "error"
        finishes = [choice.finish or other for choice in self._choices.values()]
        for finish in finishes:
            self._metrics.finished.labels(finish).inc()
        for sequence in self._first_token:
            self._ended(sequence)
        self._metrics.e2e_latency.observe(seconds)
        if self._spans is not None:
            self._spans.ended(self._span(finishes, ended))
        self._log(finishes, seconds)

    def _span(self, finishes: list[str], ended: float) -> RequestSpan:
        sampling, usage = self.request.generates[0].sampling, self.usage
        found = phases(
            ChoiceTimes(first, self._last_token[sequence], self._beginnings.get(sequence))
            for sequence, first in self._first_token.items()
        )
        told = {
            "gen_ai.request.id": self.request.id,
            "gen_ai.response.model": self._model,
            "gen_ai.request.n": self.request.n,
            "gen_ai.request.max_tokens": self.request.generates[0].max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
            "gen_ai.usage.completion_tokens": usage.completion_tokens,
            "gen_ai.response.finish_reasons": finishes,
            "echelon.request_id": self.name,
            **latencies(self._arrived, ended, found),
            **speculation(self._counts),
        }
        error = None if self._failure is None else str(self._failure)
        return RequestSpan(self._arrived, ended, told, found, error, self._caller)

    def _ended(self, sequence: str) -> None:
        """Of a choice that had at least one token."""
        decode = self._last_token[sequence] - self._first_token[sequence]
        self._metrics.request_generation_tokens.observe(self._choices[sequence].count)
        self._metrics.decode_time.observe(decode)
        if sequence in self._beginnings:
            self._metrics.inference_time.observe(self._beginnings[sequence].prefill_ns / _NS + decode)

    def _log(self, finishes: list[str], seconds: float) -> None:
        usage = self.usage
        first = min(self._first_token.values(), default=None)
        begun = self._beginnings.values()
        queue, prefill = (
            max((getattr(beginning, name) / _NS for beginning in begun), default=0.0)
            for name in ("queue_ns", "prefill_ns")
        )
        log.info(
            "request=%s %s prompt=%d cached=%d completion=%d queue=%.3f prefill=%.3f first_token=%s seconds=%.3f "
            "finish=%s%s",
            self.name,
            self.request.id,
            usage.prompt_tokens,
            self._cached,
            usage.completion_tokens,
            queue,
            prefill,
            "-" if first is None else f"{first - self._arrived:.3f}",
            seconds,
            ",".join(finishes),
            "" if self._failure is None else f" error={str(self._failure)!r}",
            extra={"request_id": self.name},
        )

    def _set_deadline(self, seconds: float | None) -> asyncio.TimerHandle | None:
        if seconds is None:
            return None
        error = DeadlineExceeded(f"the request took longer than the {seconds:g} seconds that this server allows")
        left = self._arrived + seconds - self._clock()
        return asyncio.get_running_loop().call_later(max(0.0, left), self._submission.put, error)

    def _measure(self, sequence: str, delta: Delta) -> None:
        tokens = len(delta.tokens)
        if tokens == 0:
            return
        now = self._clock()
        self._metrics.generation_tokens.inc(tokens)
        if not self._first_token:
            self._metrics.time_to_first_token.observe(now - self._arrived)
        if sequence not in self._first_token:
            self._first_token[sequence] = now
        else:
            gap = (now - self._last_token[sequence]) / tokens
            for _ in range(tokens):
                self._metrics.inter_token_latency.observe(gap)
        self._last_token[sequence] = now
        count = self._choices[sequence].count
        if delta.finish is not None and count > tokens:
            self._metrics.time_per_output_token.observe((now - self._first_token[sequence]) / (count - 1))

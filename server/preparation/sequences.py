"""From a request body to the sequences to generate: limits, defaults and sampling. Pure; raises `ApiError`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from server.errors import bad_request, context_length_exceeded
from server.preparation.reading import PLAIN, Reading
from server.protocol.requests import ChatCompletionRequest, CompletionRequest, SamplingFields, StreamOptions
from server.structured_output.grammars import Restriction
from workers.shared.messages import Generate, Sampling

_SEED_MASK = 2**64 - 1
_GREEDY_BELOW = 1e-5  # temperatures that would overflow float32 logits; vLLM draws the line at the same place
_COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the model that is served."""

    max_model_len: int
    vocab_size: int
    eos_ids: frozenset[int]
    by_priority: bool = False  # whether requests that wait go by their field `priority`


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One HTTP request, checked and encoded: `generates[i]` makes choice i, `n` consecutive choices a prompt."""

    id: str
    generates: list[Generate]
    n: int
    stops: list[str]
    min_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool  # usage so far in every chunk
    return_token_ids: bool
    continues: bool  # the text goes on where the prompt ends; else it begins anew, as a message does
    reading: Reading = PLAIN
    echo: list[str] | None = None  # text of each prompt, to be repeated before the answer
    echoes_logprobs: bool = False  # of the prompts' tokens
    echo_only: bool = False  # nothing is to come after the prompt; the engine makes a token all the same

    @property
    def prompts(self) -> list[list[int]]:
        """Tokens of each prompt."""
        return [generate.prompt for generate in self.generates[:: self.n]]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; each counts once, however many choices it has."""
        return sum(map(len, self.prompts))


def prepared_chat(
    body: ChatCompletionRequest,
    request_id: str,
    prompt: list[int],
    limits: Limits,
    draw_seed: Callable[[], int],
    restriction: Restriction | None = None,
) -> PreparedRequest:
    """A chat completion, given its prompt tokens and the grammar of its answer."""
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs' to be true", "top_logprobs")
    name, asked = "max_tokens", body.max_tokens
    if body.max_completion_tokens is not None:
        if asked is not None and asked != body.max_completion_tokens:
            raise bad_request("'max_tokens' and 'max_completion_tokens' differ; send one of them", "max_tokens")
        name, asked = "max_completion_tokens", body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    budget = Budget("messages", name, asked, default=None)
    prepared = _prepared(body, request_id, [prompt], budget, logprobs, limits, draw_seed, restriction)
    return replace(prepared, continues=body.add_generation_prompt is False)


def prepared_completion(
    body: CompletionRequest,
    request_id: str,
    prompts: Sequence[list[int]],
    limits: Limits,
    draw_seed: Callable[[], int],
    restriction: Restriction | None = None,
) -> PreparedRequest:
    """A plain completion, given the tokens of its prompts and the grammar of its answers."""
    for prompt in prompts:
        if not prompt:
            raise bad_request("'prompt' must hold at least one token", "prompt")
        if not all(0 <= token < limits.vocab_size for token in prompt):
            raise bad_request(f"'prompt' has token ids outside 0..{limits.vocab_size - 1}", "prompt")
    if body.max_tokens == 0 and not body.echo:
        raise bad_request("'max_tokens' can be 0 only together with 'echo'", "max_tokens")
    asked = None if body.max_tokens is None else max(1, body.max_tokens)
    budget = Budget("prompt", "max_tokens", asked, default=_COMPLETION_MAX_TOKENS)
    prompt_logprobs = body.logprobs if body.echo else None
    prepared = _prepared(
        body, request_id, prompts, budget, body.logprobs, limits, draw_seed, restriction, prompt_logprobs
    )
    return replace(prepared, echoes_logprobs=prompt_logprobs is not None, echo_only=body.max_tokens == 0)


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens were asked for, and by which parameters."""

    prompt_name: str
    name: str
    asked: int | None
    default: int | None  # None: as many as there is room for

    def tokens(self, prompt_tokens: int, max_model_len: int) -> int:
        """Tokens to generate after a prompt; raises the `context_length_exceeded` error."""
        limit = f"This model's maximum context length is {max_model_len} tokens. However, "
        room = max_model_len - prompt_tokens
        if room < 1:
            raise context_length_exceeded(
                f"{limit}your {self.prompt_name} resulted in {prompt_tokens} tokens, and a completion needs at least "
                f"one more. Please reduce the length of the {self.prompt_name}.",
                self.prompt_name,
            )
        if self.asked is not None and self.asked > room:
            raise context_length_exceeded(
                f"{limit}you requested {prompt_tokens + self.asked} tokens ({prompt_tokens} in the {self.prompt_name}, "
                f"{self.asked} in the completion). Please reduce the length of the {self.prompt_name} or "
                f"'{self.name}'.",
                self.name,
            )
        if self.asked is not None:
            return self.asked
        return room if self.default is None else min(self.default, room)


def _prepared(
    body: SamplingFields,
    request_id: str,
    prompts: Sequence[list[int]],
    budget: Budget,
    logprobs: int | None,
    limits: Limits,
    draw_seed: Callable[[], int],
    restriction: Restriction | None,
    prompt_logprobs: int | None = None,
) -> PreparedRequest:
    if body.stream_options is not None and not body.stream:
        raise bad_request("'stream_options' needs 'stream' to be true", "stream_options")
    if body.priority and not limits.by_priority:
        raise bad_request("'priority' needs a server started with --scheduling-policy priority; remove it", "priority")
    max_tokens = [budget.tokens(len(prompt), limits.max_model_len) for prompt in prompts]
    sampling = msgspec.structs.replace(_sampling(body, logprobs, limits), prompt_logprobs=prompt_logprobs)
    if restriction is not None:
        _check_restricted(body, restriction, limits)
        sampling = msgspec.structs.replace(sampling, grammar=restriction.grammar)
    if sampling.min_tokens > min(max_tokens):
        raise bad_request(f"'min_tokens' must not exceed the {min(max_tokens)} tokens to generate", "min_tokens")
    n = body.n or 1
    generates: list[Generate] = []
    for prompt, tokens in zip(prompts, max_tokens, strict=True):
        seed = draw_seed() if body.seed is None else body.seed
        for choice in range(n):
            generates.append(
                Generate(
                    id=f"{request_id}-{len(generates)}",
                    prompt=prompt,
                    max_tokens=tokens,
                    sampling=msgspec.structs.replace(sampling, seed=(seed + choice) & _SEED_MASK),
                    stop_tokens=sampling.end_tokens,
                    priority=body.priority or 0,
                )
            )
    options = body.stream_options or StreamOptions()
    return PreparedRequest(
        id=request_id,
        generates=generates,
        n=n,
        stops=body.stop or [],
        min_tokens=sampling.min_tokens,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        continues=True,
    )


def _check_restricted(body: SamplingFields, restriction: Restriction, limits: Limits) -> None:
    """A grammar alone decides where the answer may end, and the only end it knows is the model's."""
    param = restriction.param
    if not limits.eos_ids:
        raise bad_request(f"'{param}' needs a model with an end token; this one has none", param)
    for name, value in (("ignore_eos", body.ignore_eos), ("min_tokens", body.min_tokens)):
        if value:
            raise bad_request(f"'{name}' cannot be combined with '{param}'; remove one of them", name)


def _sampling(body: SamplingFields, logprobs: int | None, limits: Limits) -> Sampling:
    """Everything but the seed."""
    stop_ids = set(body.stop_token_ids or ())
    if any(token >= limits.vocab_size for token in stop_ids):
        raise bad_request(f"'stop_token_ids' has ids outside 0..{limits.vocab_size - 1}", "stop_token_ids")
    temperature = _given(body.temperature, 1.0)
    top_p, top_k = _given(body.top_p, 1.0), max(0, body.top_k or 0)
    if top_p == 0.0:
        # The smallest nucleus is the most likely token.
        top_p, top_k = 1.0, 1
    return Sampling(
        seed=0,
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_p=top_p,
        top_k=top_k if top_k < limits.vocab_size else 0,
        min_p=_given(body.min_p, 0.0),
        presence_penalty=_given(body.presence_penalty, 0.0),
        frequency_penalty=_given(body.frequency_penalty, 0.0),
        repetition_penalty=_given(body.repetition_penalty, 1.0),
        logit_bias=_logit_bias(body.logit_bias or {}, limits.vocab_size),
        min_tokens=body.min_tokens or 0,
        end_tokens=tuple(sorted(stop_ids | (frozenset() if body.ignore_eos else limits.eos_ids))),
        logprobs=logprobs,
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    checked: dict[int, float] = {}
    for key, bias in biases.items():
        # `isdecimal` alone would let other scripts' digits, and very long numbers, through to int().
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < vocab_size):
            raise bad_request(
                f"'logit_bias' has the key '{key[:20]}'; keys must be token ids, 0..{vocab_size - 1}", "logit_bias"
            )
        checked[int(key)] = float(bias)
    return checked

"""Which requests the engine takes. The API server has checked them; a client of the bus need not be that server."""

from math import isfinite

from workers.shared.messages import Generate, Sampling


def refusal(request: Generate, room: int, vocab_size: int) -> str | None:
    """Why `request` cannot be served by an engine of `room` positions and `vocab_size` tokens; None if it can.

    A token or a number out of bounds would only be noticed in a stage, and end the engine for everybody.
    """
    if not request.prompt or request.max_tokens < 1 or len(request.prompt) + request.max_tokens > room:
        return f"prompt and max_tokens must be at least 1 and fit {room} tokens together"
    if not all(0 <= token < vocab_size for token in (*request.prompt, *request.generated)):
        return f"prompt or generated have token ids outside 0..{vocab_size - 1}"
    if len(request.generated) >= request.max_tokens:
        return "generated must be fewer than max_tokens: nothing is left to generate"
    return _sampling_refusal(request.sampling, vocab_size)


def _sampling_refusal(sampling: Sampling, vocab_size: int) -> str | None:
    numbers = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        **{f"logit_bias of {token}": bias for token, bias in sampling.logit_bias.items()},
    }
    for name, number in numbers.items():
        if not isfinite(number):
            return f"{name} is not a finite number"
    if not all(0 <= token < vocab_size for token in (*sampling.logit_bias, *sampling.end_tokens)):
        return f"logit_bias or end_tokens have token ids outside 0..{vocab_size - 1}"
    bounds = {
        "temperature": sampling.temperature >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "min_p": 0 <= sampling.min_p <= 1,
        "repetition_penalty": sampling.repetition_penalty > 0,
        "top_k": sampling.top_k >= 0,
        "logprobs": sampling.logprobs is None or sampling.logprobs >= 0,
        "prompt_logprobs": sampling.prompt_logprobs is None or sampling.prompt_logprobs >= 0,
    }
    return next((f"{name} is out of bounds" for name, within in bounds.items() if not within), None)

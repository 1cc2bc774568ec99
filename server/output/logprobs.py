"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Sequence

from server.output.assembler import ShownToken
from server.protocol.completion_objects import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob
from server.tokenizer import ModelTokenizer

_LOWEST = -9999.0  # stands for minus infinity, which JSON cannot write


def chat_logprobs(shown: Sequence[ShownToken], tokenizer: ModelTokenizer) -> ChatLogprobs | None:
    """In the shape of chat completions; None if the tokens carry none."""
    content = []
    for item in shown:
        if item.logprobs is None:
            return None
        content.append(
            ChatTokenLogprob(
                token=tokenizer.token_text(item.token),
                logprob=_finite(item.logprobs.logprob),
                bytes=list(tokenizer.token_bytes(item.token)),
                top_logprobs=[
                    TopLogprob(tokenizer.token_text(token), _finite(logprob), list(tokenizer.token_bytes(token)))
                    for token, logprob in item.logprobs.top
                ],
            )
        )
    return ChatLogprobs(content)


def completion_logprobs(
    prompt: Sequence[ShownToken], shown: Sequence[ShownToken], tokenizer: ModelTokenizer, *, top: bool, start: int
) -> CompletionLogprobs:
    """In the shape of plain completions; `top` says whether the most likely tokens were asked for.

    `start` is where the text of `shown` begins, in characters: after that of a prompt that is repeated.
    """
    tokens: list[str] = []
    chosen: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for item in (*prompt, *shown):
        text = tokenizer.token_text(item.token)
        tokens.append(text)
        if item.logprobs is None:
            chosen.append(None)
            tops.append(None)
            continue
        logprob = _finite(item.logprobs.logprob)
        chosen.append(logprob)
        most_likely = {tokenizer.token_text(token): _finite(logprob) for token, logprob in item.logprobs.top}
        # OpenAI lists the chosen token even where it is not among the most likely ones.
        tops.append({text: logprob} | most_likely)
    offsets = [*(item.offset for item in prompt), *(start + item.offset for item in shown)]
    return CompletionLogprobs(tokens, chosen, tops if top else None, offsets)


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)

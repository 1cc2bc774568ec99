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


def completion_logprobs(shown: Sequence[ShownToken], tokenizer: ModelTokenizer, top: bool) -> CompletionLogprobs | None:
    """In the shape of plain completions; `top` says whether the most likely tokens were asked for."""
    tokens, chosen, offsets, tops = [], [], [], []
    for item in shown:
        if item.logprobs is None:
            return None
        text = tokenizer.token_text(item.token)
        tokens.append(text)
        chosen.append(_finite(item.logprobs.logprob))
        offsets.append(item.offset)
        most_likely = {tokenizer.token_text(token): _finite(logprob) for token, logprob in item.logprobs.top}
        # OpenAI lists the chosen token even where it is not among the most likely ones.
        tops.append({text: chosen[-1]} | most_likely)
    return CompletionLogprobs(tokens, chosen, tops if top else None, offsets)


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)

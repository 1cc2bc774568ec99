"""From logits to a token, on the last stage only.

Deterministic in (logits, parameters, position, preceding tokens): the noise is a function of seed and position, so a
position gets the same token however often it is computed, and with whatever drafter.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from workers.sampling.gumbel_noise import gumbel, gumbel_of
from workers.sampling.history import History
from workers.shared.messages import Sampling, TokenLogprobs

_SMALL_NUCLEUS = 1024  # tokens


class Sampled(NamedTuple):
    """A token, and what is known of it."""

    token: int
    logprobs: TokenLogprobs | None = None  # if the request asked for them
    probability: float | None = None  # of the token in the distribution it was sampled from; None if greedy


class Sampler:
    """Samples exactly as plain decoding does. Keeps no state from one call to the next."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """Logits will be [vocab_size] on `device`."""
        self._vocab_size = vocab_size
        self._device = device
        self._asking_is_free = device.type == "cpu"  # elsewhere the host would wait for the device

    def sample(
        self,
        logits: Tensor,
        sampling: Sampling,
        position: int,
        history: History,
        allowed: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Sampled:
        """The token at absolute `position`, from float32 logits [vocab_size], which are left as they are.

        `history` is exactly the tokens before that position. All token ids in `sampling` must be below `vocab_size`
        (the server has checked). `allowed` is the `mask` of what a grammar permits here, and `noise` what `noise` gives
        for the position; without it, it is computed now. Log-probabilities are those of the logits as they come.
        """
        shaped = self.shape(logits, sampling, history, allowed)
        drawn = self.perturb(shaped, sampling, position, noise).argmax(keepdim=True)
        probability: float | None = None
        if sampling.temperature == 0:
            token = int(drawn)
        else:  # both in one go, as a host waits for its device each time
            found, probability = torch.cat([drawn.double(), shaped.gather(0, drawn).exp().double()]).tolist()
            token = int(found)
        return Sampled(
            token,
            None if sampling.logprobs is None else token_logprobs(logits, token, sampling.logprobs),
            probability,
        )

    def mask(self, allowed: bytes) -> Tensor:
        """What `sample` takes, bool [vocab_size], of a bit for each token that is permitted, the least first."""
        return _unpack(allowed, self._vocab_size, self._device)

    def noise(self, sampling: Sampling, position: int) -> Tensor | None:
        """The noise of `position`, float32 [vocab_size], which depends on nothing else and may be had before.

        None where few tokens will need any, and which ones is not known yet.
        """
        if sampling.temperature == 0 or _truncates(sampling):
            return None
        return gumbel(sampling.seed, position, self._vocab_size, self._device)

    def shape(self, logits: Tensor, sampling: Sampling, history: History, allowed: Tensor | None = None) -> Tensor:
        """Log-probabilities [vocab_size] of the distribution to sample from; for greedy decoding, logits."""
        processed = self._reshape(logits, sampling, history)
        if allowed is not None:
            processed = processed.masked_fill(~allowed, -torch.inf)
        if sampling.temperature == 0:
            return processed
        return _truncate(_scale(processed, sampling.temperature), sampling).log_softmax(0)

    def perturb(self, shaped: Tensor, sampling: Sampling, position: int, noise: Tensor | None = None) -> Tensor:
        """What `sample` takes the largest of, [vocab_size]; drafters order their candidates by the same rule.

        A drafter that adds the target's own noise to its distribution agrees with it as often as can be.
        """
        if sampling.temperature == 0:
            return shaped
        if noise is None and _truncates(sampling) and self._asking_is_free:
            tokens = (shaped > -torch.inf).nonzero().squeeze(1)
            return shaped.index_add(0, tokens, gumbel_of(sampling.seed, position, tokens))
        return shaped + (gumbel(sampling.seed, position, self._vocab_size, self._device) if noise is None else noise)

    def _reshape(self, logits: Tensor, sampling: Sampling, history: History) -> Tensor:
        """Logits after bias, penalties and `min_tokens`; the same tensor where none of them applies."""
        result = logits
        if sampling.logit_bias:
            result = result.index_add(0, self._ids(sampling.logit_bias), self._floats(sampling.logit_bias.values()))
        if history.seen:
            ids = history.seen.ids.to(self._device)
            seen = result[ids]
            penalised = torch.where(seen > 0, seen / sampling.repetition_penalty, seen * sampling.repetition_penalty)
            result = result.index_copy(0, ids, penalised)
        if history.output:
            counts = history.output.counts.double()
            change = (-sampling.presence_penalty - sampling.frequency_penalty * counts).float()
            result = result.index_add(0, history.output.ids.to(self._device), change.to(self._device))
        if sampling.end_tokens and history.outputs < sampling.min_tokens:
            result = result.index_fill(0, self._ids(sampling.end_tokens), -torch.inf)
        return result

    def _ids(self, tokens: Iterable[int]) -> Tensor:
        return torch.tensor(list(tokens), dtype=torch.int64, device=self._device)

    def _floats(self, values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float32, device=self._device)


def _unpack(mask: bytes, vocab_size: int, device: torch.device) -> Tensor:
    """Bits, least significant first, as a bool tensor [vocab_size] on `device`."""
    packed = torch.frombuffer(bytearray(mask), dtype=torch.uint8).unsqueeze(1)
    bits = (packed >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten()[:vocab_size].bool().to(device)


def _truncates(sampling: Sampling) -> bool:
    """Whether most tokens are excluded before the draw."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _scale(logits: Tensor, temperature: float) -> Tensor:
    """Logits over temperature, with the largest moved to 0 first, so that no temperature is too small to divide by."""
    return (logits - logits.max()) / temperature


def _truncate(scores: Tensor, sampling: Sampling) -> Tensor:
    """Scores with -inf for the tokens that top-k, top-p and min-p exclude, in this order; the largest score is 0.

    Each keeps or drops tokens of equal score together, so that the result does not depend on the order of a sort.
    """
    if 0 < sampling.top_k < len(scores):
        lowest = scores.topk(sampling.top_k).values[-1]
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    if sampling.top_p < 1:
        probabilities = scores.softmax(0)
        scores = scores.masked_fill(probabilities < _nucleus_floor(probabilities, sampling.top_p), -torch.inf)
    if sampling.min_p > 0:
        scores = scores.masked_fill(scores < math.log(sampling.min_p), -torch.inf)
    return scores


def _nucleus_floor(probabilities: Tensor, top_p: float) -> Tensor:
    """The least probability in the nucleus: the most likely tokens, up to the one that makes their sum reach top_p."""
    # Sorting a whole vocabulary takes milliseconds on a CPU; a nucleus is nearly always a small part of it. Whether it
    # was is not asked elsewhere, where sorting is quick and the host would wait for the answer.
    size = min(_SMALL_NUCLEUS, len(probabilities)) if probabilities.device.type == "cpu" else len(probabilities)
    ordered, before_last = _ordered(probabilities, size, top_p)
    if size < len(probabilities) and int(before_last) == size:
        ordered, before_last = _ordered(probabilities, len(probabilities), top_p)
    # Rounding may keep the sum of all of them below top_p.
    return ordered.gather(0, before_last.clamp(max=len(ordered) - 1)[None])[0]


def _ordered(probabilities: Tensor, size: int, top_p: float) -> tuple[Tensor, Tensor]:
    """The `size` largest, and how many of them are needed to come short of `top_p` once more."""
    ordered = probabilities.topk(size).values
    return ordered, (ordered.cumsum(0, dtype=torch.float64) < top_p).sum()


def token_logprobs(logits: Tensor, token: int, count: int) -> TokenLogprobs:
    """Of `token` and of the `count` most likely ones, from raw `logits` [vocabulary]."""
    logprobs = logits.log_softmax(0)
    values, ids = logprobs.topk(min(count, len(logprobs)))
    return TokenLogprobs(float(logprobs[token]), list(zip(ids.tolist(), values.tolist(), strict=True)))

"""Gumbel noise from a counter-based hash of (seed, position, token): no generator, no state, nothing to roll back.

Adding it to log-probabilities and taking the largest is one exact draw from the distribution (the Gumbel-max trick).
The last stage and every drafter use the same noise for the same position, which is what makes their draws agree.
"""

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea and Flood, 2014): the increment of its counter and the multipliers of its finaliser.
_INCREMENT = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = (1 << 64) - 1

_BITS = 52  # of the hash that are used: with one bit for the half, the most that float64 holds exactly


def gumbel(seed: int, position: int, size: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise for the tokens 0..size-1 at `position`: float32 [size], always finite."""
    return gumbel_of(seed, position, torch.arange(size, dtype=torch.int64, device=device))


def gumbel_of(seed: int, position: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise for `tokens`, int64 [n], at `position`: float32 [n], always finite.

    Any integers will do for `seed` and `position`. The hash is exact on every device; only the two logarithms round
    as the device does.
    """
    key = _mix(_mix(seed) + position * _INCREMENT)
    # Integers wrap around in torch as they do in C, on every device.
    words = (tokens * _signed(_INCREMENT)).add_(_signed(key))
    words = words.bitwise_xor_(_shifted(words, 30)).mul_(_signed(_FIRST))
    words = words.bitwise_xor_(_shifted(words, 27)).mul_(_signed(_SECOND))
    words = words.bitwise_xor_(_shifted(words, 31))
    # The middles of 2**52 equal intervals, so that neither 0 nor 1 occurs. float64, because in float32 the largest
    # noise would be 16.6 and unlikely tokens would never be drawn.
    uniform = _shifted(words, 64 - _BITS).double().add_(0.5).mul_(2.0**-_BITS)
    return uniform.log_().neg_().log_().neg_().float()


def _mix(word: int) -> int:
    """SplitMix64's output for one counter value: a bijection of 64-bit words."""
    word = (word + _INCREMENT) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own repeats the sign of an int64."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the same bits as an unsigned 64-bit word."""
    return word - (1 << 64) if word >= 1 << 63 else word

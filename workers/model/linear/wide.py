"""When many rows together are multiplied otherwise than few.

The products with packed weights are made for few rows. Frames of more than `WIDE_...` are chunks of prompts, which
always have the same tokens in them, so that results stay the same whatever else is computed.
"""

import torch

# Rows; measured: with more of them converting weights first is faster.
WIDE_FOUR_BIT = 64
WIDE_EIGHT_BIT = 16
PIECE = 1 << 19  # weights converted at once: they should stay in a core's cache


def has_wide_products() -> bool:
    """Whether this processor multiplies bfloat16, so that it need not be emulated."""
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.11 does not tell
    return bool(capabilities.get("avx512_bf16"))

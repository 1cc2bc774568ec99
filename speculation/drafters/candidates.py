"""From a drafter's logits to a draft, by the rule that the target samples by."""

from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.drafters.base import Draft
from workers.sampling.sampler import Sampler
from workers.shared.messages import Sampling

CANDIDATES = 16  # ranks that are told apart in the hit rates


def draft_from(
    logits: Tensor, sampler: Sampler, sampling: Sampling, position: int, prompt: Sequence[int], output: Sequence[int]
) -> Draft:
    """The draft at `position`, which `prompt` and `output` precede, from float32 logits `[target vocabulary]`.

    The candidates are the likeliest for a target whose distribution is the drafter's, given the noise of the position.
    """
    shaped = sampler.shape(logits, sampling, prompt, output)
    scores = sampler.perturb(shaped, sampling, position)
    best = scores.topk(min(CANDIDATES, len(scores))).indices
    return Draft(
        tuple(best.tolist()),
        float(torch.exp(logits[best[0]] - logits.logsumexp(0))),
        () if sampling.temperature == 0 else tuple(shaped[best].exp().tolist()),
    )

"""From a drafter's logits to a draft, by the rule that the target samples by."""

import torch
from torch import Tensor

from speculation.drafters.base import Draft
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.messages import Sampling

CANDIDATES = 16  # ranks that are told apart in the hit rates


def draft_from(logits: Tensor, sampler: Sampler, sampling: Sampling, position: int, history: History) -> Draft:
    """The draft at `position`, which `history` precedes, from float32 logits `[target vocabulary]`.

    The candidates are the likeliest for a target whose distribution is the drafter's, given the noise of the position.
    """
    shaped = sampler.shape(logits, sampling, history)
    scores = sampler.perturb(shaped, sampling, position)
    best = scores.topk(min(CANDIDATES, len(scores))).indices
    return Draft(
        tuple(best.tolist()),
        float(torch.exp(logits[best[0]] - logits.logsumexp(0))),
        () if sampling.temperature == 0 else tuple(shaped[best].exp().tolist()),
    )

"""From a drafter's logits to a draft, by the rule that the target samples by."""

import torch
from torch import Tensor

from speculation.drafters.base import Draft
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.messages import Sampling

CANDIDATES = 16  # ranks that are told apart in the hit rates


def draft_from(
    logits: Tensor, sampler: Sampler, sampling: Sampling, position: int, history: History, *, chances: bool = False
) -> Draft:
    """The draft at `position`, which `history` precedes, from float32 logits `[target vocabulary]`.

    The candidates are the likeliest for a target whose distribution is the drafter's, given the noise of the position;
    what the request's top-k, top-p or min-p excludes is none. With `chances`, each of them has one.
    """
    shaped = sampler.shape(logits, sampling, history)
    scores = sampler.perturb(shaped, sampling, position)
    values, best = scores.topk(min(CANDIDATES, len(scores)))
    possible = max(1, int((values > -torch.inf).sum()))
    best = best[:possible]
    return Draft(
        tuple(best.tolist()),
        float(torch.exp(logits[best[0]] - logits.logsumexp(0))),
        () if sampling.temperature == 0 else tuple(shaped[best].exp().tolist()),
        tuple((values[:possible] - scores.logsumexp(0)).exp().tolist()) if chances else (),
    )

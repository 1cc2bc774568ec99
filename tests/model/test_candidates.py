"""A draft's candidates, and the best acceptance that its distribution allows."""

import pytest
import torch

from speculation.drafters.candidates import draft_from
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.messages import Sampling, SpeculationCounts

VOCABULARY = 12


def test_a_greedy_draft_is_ordered_by_logits_and_has_no_probabilities() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0])
    sampling = Sampling(seed=0, temperature=0)
    draft = draft_from(logits, Sampler(4, torch.device("cpu")), sampling, 7, History(1, sampling, [1, 2]))
    assert draft.candidates == (1, 3, 2, 0)
    assert draft.confidence == pytest.approx(float(logits.softmax(0)[1]))
    assert draft.probabilities == ()


def test_the_bound_is_the_overlap_of_both_distributions_and_shared_noise_comes_close_to_it() -> None:
    generator = torch.Generator().manual_seed(0)
    target, drafter = (2 * torch.randn(VOCABULARY, generator=generator) for _ in range(2))
    drafter = 0.5 * (target + drafter)
    sampler = Sampler(VOCABULARY, torch.device("cpu"))
    sampling = Sampling(seed=3, temperature=0.8, top_k=9)
    history = History(0, sampling)
    counts, agreed, draws = SpeculationCounts(), 0, 3000
    for position in range(draws):
        draft = draft_from(drafter, sampler, sampling, position, history)
        sampled = sampler.sample(target, sampling, position, history)
        assert sampled.probability is not None
        agreed += draft.token == sampled.token
        of_token = dict(zip(draft.candidates, draft.probabilities, strict=True))
        counts.compare(sampled.probability, of_token.get(sampled.token, 0.0))
    p, q = (sampler.shape(logits, sampling, history).exp() for logits in (target, drafter))
    overlap = float(torch.minimum(p, q).sum())
    assert counts.bounded == draws
    assert counts.bound / draws == pytest.approx(overlap, abs=0.02)
    assert overlap - 0.1 < agreed / draws < overlap + 0.02

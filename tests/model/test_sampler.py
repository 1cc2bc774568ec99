"""The sampler against a naive float64 oracle, parameter by parameter and all together."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from workers.sampling.gumbel_noise import gumbel
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.messages import Sampling

CPU = torch.device("cpu")
VOCABULARY = 12


def oracle_logits(logits: Sequence[float], sampling: Sampling, prompt: list[int], output: list[int]) -> list[float]:
    """Logits after bias, penalties and min_tokens, one token at a time."""
    result = []
    for token, logit in enumerate(logits):
        logit += sampling.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        logit -= sampling.frequency_penalty * output.count(token)
        logit -= sampling.presence_penalty * (token in output)
        if token in sampling.end_tokens and len(output) < sampling.min_tokens:
            logit = -math.inf
        result.append(logit)
    return result


def oracle_probabilities(logits: Sequence[float], sampling: Sampling) -> list[float]:
    """Probabilities after temperature, top-k, top-p and min-p."""
    peak = max(logits)
    weights = [math.exp((logit - peak) / sampling.temperature) for logit in logits]
    if sampling.top_k:
        floor = sorted(weights, reverse=True)[: sampling.top_k][-1]
        weights = [weight if weight >= floor else 0.0 for weight in weights]
    total = sum(weights)
    probabilities = [weight / total for weight in weights]
    if sampling.top_p < 1:
        so_far = 0.0
        for floor in sorted(probabilities, reverse=True):
            so_far += floor
            if so_far >= sampling.top_p:
                break
        probabilities = [p if p >= floor * (1 - 1e-6) else 0.0 for p in probabilities]
    top = max(probabilities)
    probabilities = [p if p >= sampling.min_p * top else 0.0 for p in probabilities]
    total = sum(probabilities)
    return [p / total for p in probabilities]


LOGITS = st.lists(st.integers(-24, 24).map(lambda x: x / 4), min_size=VOCABULARY, max_size=VOCABULARY)
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    "top_p": st.sampled_from([1e-9, 0.123, 0.5, 0.877, 0.99, 1.0]),
    "top_k": st.integers(0, VOCABULARY + 2),
    "min_p": st.sampled_from([0.0, 0.01, 0.11, 0.6, 1.0]),
    "presence_penalty": st.sampled_from([-2.0, 0.0, 0.7, 2.0]),
    "frequency_penalty": st.sampled_from([-2.0, 0.0, 0.3, 2.0]),
    "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
    "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, -1.0, 2.0, 100.0])),
    "min_tokens": st.integers(0, 10),
    "end_tokens": st.sampled_from([(), (3,), (0, 11)]),
}


def text(sampling: Sampling, prompt: list[int], output: Sequence[int] = ()) -> History:
    return History(len(prompt), sampling, [*prompt, *output])


def check(logits: list[float], sampling: Sampling, position: int, prompt: list[int], output: list[int]) -> None:
    """One draw equals the oracle's, unless rounding could decide it."""
    given_logits = torch.tensor(logits)
    processed = oracle_logits(logits, sampling, prompt, output)
    if sampling.temperature == 0:
        expected = processed.index(max(processed))
    else:
        probabilities = oracle_probabilities(processed, sampling)
        noise = gumbel(sampling.seed, position, VOCABULARY, CPU).tolist()
        scores = [math.log(p) + g if p else -math.inf for p, g in zip(probabilities, noise, strict=True)]
        best, second = sorted(scores, reverse=True)[:2]
        assume(best - second > 1e-4)
        expected = scores.index(best)
    token, logprobs, _ = Sampler(VOCABULARY, CPU).sample(
        given_logits, sampling, position, text(sampling, prompt, output)
    )
    assert token == expected
    assert logprobs is None
    assert given_logits.tolist() == logits, "the caller's logits were changed"


@pytest.mark.parametrize("name", sorted(PARAMETERS))
@settings(max_examples=60)
@given(data=st.data())
def test_each_parameter_alone(name: str, data: st.DataObject) -> None:
    parameters = {name: data.draw(PARAMETERS[name])}
    if name == "min_tokens":
        parameters["end_tokens"] = (3, 7)
    if name == "end_tokens":
        parameters["min_tokens"] = 4
    check(
        data.draw(LOGITS), Sampling(seed=9, **parameters), data.draw(st.integers(0, 99)), [1, 1, 2], data.draw(TOKENS)
    )


@settings(max_examples=400)
@given(LOGITS, st.fixed_dictionaries(PARAMETERS), st.integers(0, 2**64 - 1), st.integers(0, 9999), TOKENS, TOKENS)
def test_all_parameters_together(
    logits: list[float],
    parameters: dict[str, Any],
    seed: int,
    position: int,
    prompt: list[int],
    output: list[int],
) -> None:
    check(logits, Sampling(seed=seed, **parameters), position, prompt, output)


@settings(max_examples=100)
@given(LOGITS, st.fixed_dictionaries({name: PARAMETERS[name] for name in PARAMETERS if name != "temperature"}), TOKENS)
def test_greedy_takes_the_first_maximum(logits: list[float], parameters: dict[str, Any], output: list[int]) -> None:
    parameters["repetition_penalty"] = 1.0 if parameters["repetition_penalty"] == 1.3 else 0.5  # exact in binary
    parameters["frequency_penalty"] = round(parameters["frequency_penalty"])
    parameters["presence_penalty"] = round(parameters["presence_penalty"])
    check(logits, Sampling(seed=0, temperature=0.0, **parameters), 5, [4], output)


def draw(logits: list[float], sampling: Sampling, position: int = 0) -> int:
    return Sampler(len(logits), CPU).sample(torch.tensor(logits), sampling, position, text(sampling, [0]))[0]


@pytest.mark.parametrize("top_p", [1e-30, 1e-9, 0.2])
def test_tiny_top_p_keeps_only_the_likeliest(top_p: float) -> None:
    assert {draw([1.0, 3.0, 2.0], Sampling(seed=s, top_p=top_p)) for s in range(50)} == {1}


def test_ties_are_kept_or_dropped_together() -> None:
    for limits in ({"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}):
        assert {draw([2.0, 5.0, 5.0, 1.0], Sampling(seed=s, **limits)) for s in range(50)} == {1, 2}


def test_wide_nucleus_beyond_the_partial_sort() -> None:
    """More than 1024 tokens in the nucleus: the same draws as with no limit, or with an equal share cut off."""
    logits = [0.0] * 3000 + [-1.0] * 3000
    share = 1 / (1 + math.exp(-1))
    for seed in range(60):
        limited = draw(logits, Sampling(seed=seed, top_p=share * 0.999))
        explicit = draw(logits[:3000] + [-math.inf] * 3000, Sampling(seed=seed))
        assert limited == explicit
        wide = draw(logits, Sampling(seed=seed, top_p=share + 0.01))
        assert wide == draw(logits, Sampling(seed=seed))


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-9, 1.0, 100.0])
def test_one_token_left(temperature: float) -> None:
    logits = [-math.inf] * 9
    logits[4] = -3e4
    assert draw(logits, Sampling(seed=1, temperature=temperature, top_p=0.5, top_k=3, min_p=0.1)) == 4


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1.0])
@pytest.mark.parametrize("bias", [100.0, 1e9, 3e38])
def test_huge_biases_decide(bias: float, temperature: float) -> None:
    logits = [float(i) for i in range(8)]
    assert draw(logits, Sampling(seed=1, temperature=temperature, logit_bias={2: bias})) == 2
    everything_else = {i: -bias for i in range(8) if i != 5}
    assert draw(logits, Sampling(seed=1, temperature=temperature, logit_bias=everything_else)) == 5


def test_tiny_temperature_is_greedy() -> None:
    for seed in range(20):
        assert draw([1.0, 1.001, 0.5], Sampling(seed=seed, temperature=1e-8)) == 1


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1))
    sampling = Sampling(seed=3, temperature=0.2, logit_bias={5: 50.0}, top_k=2, logprobs=4)
    token, found, _ = Sampler(VOCABULARY, CPU).sample(logits, sampling, 0, text(sampling, [1]))
    expected = np.log(np.exp(logits.double().numpy()) / np.exp(logits.double().numpy()).sum())
    assert token == 5
    assert found is not None
    assert found.logprob == pytest.approx(expected[5], abs=1e-5)
    order = np.argsort(-expected)[:4].tolist()
    assert [token for token, _ in found.top] == order
    assert [value for _, value in found.top] == pytest.approx(expected[order].tolist(), abs=1e-5)


@pytest.mark.parametrize(("asked", "given_back"), [(0, 0), (3, 3), (99, VOCABULARY)])
def test_number_of_logprobs(asked: int, given_back: int) -> None:
    sampling = Sampling(seed=0, temperature=0, logprobs=asked)
    _, found, _ = Sampler(VOCABULARY, CPU).sample(torch.zeros(VOCABULARY), sampling, 0, text(sampling, [1]))
    assert found is not None
    assert len(found.top) == given_back


def test_draws_repeat_and_depend_on_seed_and_position() -> None:
    logits = torch.zeros(1000)
    sampler, history = Sampler(1000, CPU), text(Sampling(seed=0), [0])
    draws = {
        (seed, position): [sampler.sample(logits, Sampling(seed=seed), position, history)[0] for _ in range(3)]
        for seed in range(10)
        for position in range(10)
    }
    assert all(len(set(repeated)) == 1 for repeated in draws.values())
    assert len({repeated[0] for repeated in draws.values()}) > 80


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"temperature": 0.6},
        {"top_p": 0.8},
        {"top_k": 5, "min_p": 0.05, "temperature": 1.4},
        {"frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.2, "logit_bias": {3: 1.0}},
    ],
)
@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_distribution_by_chi_square(parameters: dict[str, Any], over: str) -> None:
    """Draws over many positions, or seeds, against the oracle's probabilities, to six standard deviations."""
    logits = [1.5 * math.sin(2.3 * token) for token in range(VOCABULARY)]
    prompt, output, draws = [1, 2], [2, 3, 3], 6000
    sampling = Sampling(seed=0, **parameters)
    probabilities = oracle_probabilities(oracle_logits(logits, sampling, prompt, output), sampling)
    sampler, tensor, history = Sampler(VOCABULARY, CPU), torch.tensor(logits), text(sampling, prompt, output)
    counts = [0] * VOCABULARY
    for index in range(draws):
        seed, position = (0, index) if over == "positions" else (index, 17)
        sampled = sampler.sample(tensor, Sampling(seed=seed, **parameters), position, history)
        counts[sampled.token] += 1
        assert sampled.probability == pytest.approx(probabilities[sampled.token], rel=1e-4)
    assert not any(count for count, p in zip(counts, probabilities, strict=True) if p == 0)
    terms = [(count - draws * p) ** 2 / (draws * p) for count, p in zip(counts, probabilities, strict=True) if p]
    freedom = len(terms) - 1
    assert abs(sum(terms) - freedom) < 6 * math.sqrt(2 * freedom)


@given(LOGITS, st.fixed_dictionaries(PARAMETERS), TOKENS, TOKENS, st.integers(1, 2**VOCABULARY - 1))
def test_what_was_worked_out_before_changes_nothing(
    logits: list[float], parameters: dict[str, Any], prompt: list[int], output: list[int], allowed: int
) -> None:
    sampler, sampling = Sampler(VOCABULARY, CPU), Sampling(seed=5, **parameters)
    history, tensor = text(sampling, prompt, output), torch.tensor(logits)
    mask = sampler.mask(allowed.to_bytes(2, "little"))
    assert mask.tolist() == [bool(allowed >> token & 1) for token in range(VOCABULARY)]
    assume(math.isfinite(float(sampler.shape(tensor, sampling, history, mask).max())))
    late = sampler.sample(tensor, sampling, 7, history, mask)
    assert sampler.sample(tensor, sampling, 7, history, mask, sampler.noise(sampling, 7)) == late
    assert sampler.sample(tensor, sampling, 7, history, mask, gumbel(5, 7, VOCABULARY, CPU)) == late

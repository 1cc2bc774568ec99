"""Speculation never loses: in made-up machines the controller is as good as the best fixed choice, from the start."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Times
from tests.unit.speculation.controller_sim import ALL, BOTH, MODULE, NGRAM, NONE, play

SEEDS = range(4)
OWN_DEVICE = {
    "none": Times(0.05, 0.1),
    "ngram": Times(0.05, 0.1),
    "pdm+ngram": Times(0.052, 0.104),
    "pdm": Times(0.053, 0.105),
}
SHARED_CORES = {  # the module slows the stages down by 30 %
    "none": Times(0.05, 0.1),
    "ngram": Times(0.051, 0.102),
    "pdm+ngram": Times(0.07, 0.13),
    "pdm": Times(0.072, 0.13),
}


def wrong(name: str, token: int) -> float:
    return 0.0


@pytest.mark.parametrize("slower", [1.02, 1.1, 1.3, 2.0])
@pytest.mark.parametrize("answers", [[64], [64] * 10])
def test_a_drafter_that_is_always_wrong_costs_less_than_two_percent_from_the_first_answer_on(
    slower: float, answers: list[int]
) -> None:
    def machine(name: str) -> Times:
        return Times(0.05, 0.1) if name == "none" else Times(0.05 * slower, 0.1 * slower)

    assert fmean(play([NONE, MODULE], machine, wrong, answers, seed=seed).ratio for seed in SEEDS) < 1.02


def test_a_drafter_that_loses_even_when_it_is_right_is_never_tried() -> None:
    def machine(name: str) -> Times:
        return Times(0.015, 0.03) if name == "none" else Times(0.08, 0.11)

    outcome = play([NONE, MODULE], machine, lambda name, token: 1.0, [64] * 20)
    assert outcome.ratio == 1
    assert outcome.controller.probes == 0


@pytest.mark.parametrize("answers", [[64] * 20, [256] * 4], ids=["short", "long"])
@pytest.mark.parametrize("machine", [OWN_DEVICE, SHARED_CORES], ids=["own device", "shared cores"])
@pytest.mark.parametrize(("module", "ngram"), [(0.9, 0.55), (0.8, 0.1), (0.55, 0.2), (0.2, 0.6), (0.1, 0.02)])
def test_it_is_as_good_as_the_best_fixed_choice(
    module: float, ngram: float, machine: dict[str, Times], answers: list[int]
) -> None:
    shares = {"none": 0.0, "ngram": ngram, "pdm+ngram": module, "pdm": module}
    played = [play(ALL, machine.__getitem__, lambda name, _: shares[name], answers, seed=seed) for seed in SEEDS]
    assert fmean(outcome.ratio for outcome in played) < 1.03  # one in fifty, and what luck does in so few tokens


@pytest.mark.parametrize(("before", "after", "at_most"), [(0.8, 0.05, 0.98), (0.05, 0.8, 1.02)])
def test_it_follows_a_text_that_changes(before: float, after: float, at_most: float) -> None:
    """It leaves what has become bad at once, and finds what has become good as fast as probes may cost."""

    def right(name: str, token: int) -> float:
        return 0.0 if name == "none" else before if token < 500 else after

    played = [play([NONE, MODULE], SHARED_CORES.__getitem__, right, [1000], seed=seed) for seed in SEEDS]
    assert fmean(outcome.ratio for outcome in played) < at_most


@pytest.mark.parametrize("error", [0.7, 1.4])
def test_a_wrong_calibration_is_found_out(error: float) -> None:
    shares = {"none": 0.0, "ngram": 0.2, "pdm+ngram": 0.6, "pdm": 0.6}

    def believed(name: str) -> Times:
        times = SHARED_CORES[name]
        return times if name in ("none", "ngram") else Times(times.full * error, times.refill * error)

    played = [
        play(ALL, SHARED_CORES.__getitem__, lambda name, _: shares[name], [256] * 10, believed=believed, seed=seed)
        for seed in SEEDS
    ]
    assert fmean(outcome.ratio for outcome in played) < 1.03


def test_without_a_calibration_it_finds_out_all_the_same() -> None:
    shares = {"none": 0.0, "ngram": 0.2, "pdm+ngram": 0.55, "pdm": 0.55}
    played = [
        play(ALL, SHARED_CORES.__getitem__, lambda name, _: shares[name], [256] * 10, calibrated=False, seed=seed)
        for seed in SEEDS
    ]
    assert fmean(outcome.ratio for outcome in played) < 1.03


@given(
    st.lists(st.tuples(st.floats(0.001, 5.0), st.booleans(), st.booleans(), st.booleans()), max_size=300),
    st.integers(1, 500),
    st.integers(1, 8),
)
def test_whatever_happens_it_listens_to_the_end_or_not_at_all(
    events: list[tuple[float, bool, bool, bool]], limit: int, stages: int
) -> None:
    controller = Controller(stages, ALL, {name: SHARED_CORES[name] for name in ("none", "pdm")})
    session, now, deaf, switches = controller.begin(limit), 0.0, False, 0
    session.sampled(now, 0, 1)
    before = session.choice
    for seconds, full, answers, alone in events:
        assert not (deaf and session.listening)
        assert session.listening or not session.choice.listens
        deaf = not session.listening
        now += seconds
        session.foreseen(NGRAM, right=full)
        if answers:
            session.answered()
        session.sampled(now, 1 if full else stages, 1, alone=alone)
        switches += session.choice is not before
        before = session.choice
    session.end()
    assert controller.switches >= switches
    assert all(rate > 0 for rate in controller.predicted().values())


def test_a_single_choice_always_runs() -> None:
    session = Controller(2, [BOTH]).begin(100)
    for now in range(100):
        session.sampled(float(now), 2, 1)
        assert session.choice is BOTH
        assert session.listening


def test_where_nothing_can_be_told_apart_the_cheapest_is_taken() -> None:
    assert Controller(2, [NONE, NGRAM], {"none": Times(1, 1), "ngram": Times(1, 1)}).begin(10).choice is NONE


def test_what_is_lost_before_the_first_draft_counts() -> None:
    """A module that takes a second over each prompt is not for answers of ten tokens."""
    times = {"none": Times(0.05, 0.1), "pdm": Times(0.05, 0.1)}
    chosen = []
    for tokens in (10, 500):
        controller = Controller(2, [NONE, MODULE], times)
        for _ in range(20):
            session, now = controller.begin(tokens), 0.0
            session.sampled(now, 0, 1)
            first = session.choice
            for token in range(1, tokens):
                late = session.choice is MODULE and token == 1
                now += 1.1 if late else 0.05 if session.choice is MODULE else 0.1
                session.sampled(now, 2 if late or session.choice is NONE else 1, 1)
                session.answered()
            session.end()
        chosen.append(first)
    assert chosen == [NONE, MODULE]


def test_choices_that_listen_end_where_hidden_states_are_lost() -> None:
    controller = Controller(2, [NONE, MODULE], {"none": Times(0.05, 0.1), "pdm": Times(0.09, 0.2)})
    session = controller.begin(1000)
    assert session.choice is NONE
    session.deafen()
    for now in range(1000):
        session.sampled(float(now), 2, 1)
        assert session.choice is NONE
    with pytest.raises(ValueError, match="hidden states"):
        Controller(2, [MODULE]).begin(10).deafen()

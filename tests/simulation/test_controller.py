"""Speculation never loses: in made-up machines the controller is as good as the best fixed choice, from the start."""

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from speculation.calibration import Calibration
from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice, Judgement, Measured, Times
from tests.simulation.controller_sim import (
    ALL,
    BOTH,
    MODULE,
    NGRAM,
    NONE,
    OWN_DEVICE,
    PLAIN,
    SHARED_CORES,
    TEXTS,
    Machine,
    Shares,
    bursts,
    calibrate,
    machine,
    play,
    text,
)

SEEDS = range(8)


def mean_ratio(module: Times, shares: Shares, answers: Sequence[int], **settings: Any) -> float:
    """Tokens a second of the controller as a share of the best fixed choice's."""
    return fmean(
        play(ALL, machine(module, rng=random.Random(seed)), shares, answers, **settings).ratio for seed in SEEDS
    )


@pytest.mark.parametrize("answers", [[64] * 6, [256] * 2], ids=["short", "long"])
@pytest.mark.parametrize("module", [OWN_DEVICE, SHARED_CORES], ids=["own device", "shared cores"])
@pytest.mark.parametrize("name", TEXTS)
def test_it_is_as_good_as_the_best_fixed_choice(name: str, module: Times, answers: list[int]) -> None:
    assert mean_ratio(module, text(name), answers) > 0.975  # one in fifty, and what luck does in so few tokens


@pytest.mark.parametrize("module", [OWN_DEVICE, SHARED_CORES], ids=["own device", "shared cores"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_calibration_that_was_disturbed_costs_little(name: str, module: Times) -> None:
    """While it was made another process came and went, and all took 1.4 times as long for a second or so."""
    ratios, spreads = [], []
    for seed in SEEDS:
        busy = machine(module, rng=random.Random(seed), slower=bursts(random.Random(100 + seed), 1.4, 2.0, 1.0))
        measured = calibrate(busy, ALL)
        spreads.append(measured.spread)
        ratios.append(play(ALL, machine(module), text(name), [64] * 6, measured=measured).ratio)
    assert fmean(ratios) > 0.975
    assert max(spreads) > 1.05  # it shows


def test_times_of_a_calibration_are_those_of_the_undisturbed_machine() -> None:
    for seed in SEEDS:
        busy = machine(SHARED_CORES, rng=random.Random(seed), slower=bursts(random.Random(seed), 2.0, 1.0, 0.5))
        measured = calibrate(busy, ALL)
        assert measured.free == ["ngram"]
        assert set(measured.rows) == {1, 2, 4, 8, 16}
        for name, true in (("none", PLAIN), ("pdm", SHARED_CORES)):
            for verdict in ("right", "wrong", "silent"):
                assert getattr(measured.times[name], verdict) == pytest.approx(getattr(true, verdict), rel=0.15)


def test_somebody_who_waits_cuts_a_calibration_short() -> None:
    calibration = Calibration(ALL, 2, 1000)
    calibration.hurry()
    choices = []
    for run in calibration.runs(8):
        choices.append(run.choice.name)
        for number in range(run.request.max_tokens):
            run.sampled(1.0 + number, 2, 1, rejected=False)
        run.ended([*run.request.prompt, *range(run.request.max_tokens)], 0.0)
    assert choices == ["none", "pdm", "ngram", "none", *["none"] * 4]  # the last ones are frames of 1 to 8 rows
    assert set(calibration.measured().times) == {choice.name for choice in ALL}


@pytest.mark.parametrize(("before", "name", "least"), [("repetitive", "strange", 0.98), ("strange", "code", 0.93)])
@pytest.mark.parametrize("module", [OWN_DEVICE, SHARED_CORES], ids=["own device", "shared cores"])
def test_it_follows_a_text_that_changes(module: Times, before: str, name: str, least: float) -> None:
    """It leaves what has become bad at once, and finds what has become good as fast as probes may cost."""
    assert mean_ratio(module, text(name, until=128, before=before), [256] * 3) > least


@pytest.mark.parametrize("error", [0.8, 1.2])
@pytest.mark.parametrize("name", ["code", "prose"])
def test_a_wrong_calibration_is_found_out(name: str, error: float) -> None:
    wrong = Times(**{verdict: error * seconds for verdict, seconds in asdict(SHARED_CORES).items()})
    times = {"none": PLAIN, "ngram": PLAIN, "pdm+ngram": wrong, "pdm": wrong}
    assert mean_ratio(SHARED_CORES, text(name), [64] * 6, measured=Measured(times, free=["ngram"])) > 0.98


def test_a_calibration_that_is_far_off_is_contradicted_and_left() -> None:
    wrong = Times(**{verdict: 0.6 * seconds for verdict, seconds in asdict(SHARED_CORES).items()})
    measured = Measured({"none": PLAIN, "ngram": PLAIN, "pdm+ngram": wrong, "pdm": wrong}, free=["ngram"])
    outcome = play(ALL, machine(SHARED_CORES), text("prose"), [256] * 4, measured=measured)
    assert outcome.controller.contradicted
    assert not outcome.controller.current.listens


@pytest.mark.parametrize(("right", "silent", "least"), [(0.60, 0.19, 0.95), (0.30, 0.36, 0.97), (0.15, 0.47, 0.97)])
def test_stages_that_are_in_each_others_way_are_found_out(right: float, silent: float, least: float) -> None:
    """Another process took a core after the calibration: plain decoding, a stage at a time, can do without it.

    The times are those of two cores, two stages and a loop of copies on one core, in seconds.
    """
    alone, module = Times(right=0.021, wrong=0.034, silent=0.031), Times(right=0.040, wrong=0.060, silent=0.045)
    calibrated = {"none": alone, "ngram": alone, "pdm+ngram": module, "pdm": module}
    measured = Measured(calibrated, free=["ngram"])
    slow = Times(right=0.050, wrong=0.070, silent=0.055)
    times = {
        "none": Times(right=0.030, wrong=0.030, silent=0.030),
        "ngram": Times(right=0.029, wrong=0.0455, silent=0.0355),
        "pdm+ngram": slow,
        "pdm": slow,
    }
    shares = {"none": (0.0, 1.0), "ngram": (right, silent), "pdm+ngram": (0.8, 0.0), "pdm": (0.8, 0.0)}
    ratios = [
        play(
            ALL,
            Machine(times.__getitem__, rng=random.Random(seed)),
            lambda choice, token: shares[choice],
            [256] * 3,
            measured=measured,
        ).ratio
        for seed in SEEDS
    ]
    assert fmean(ratios) > least


@pytest.mark.parametrize("module", [OWN_DEVICE, SHARED_CORES], ids=["own device", "shared cores"])
def test_without_a_calibration_it_finds_out_all_the_same(module: Times) -> None:
    for name in TEXTS:
        assert mean_ratio(module, text(name), [256] * 3, calibrated=False) > 0.95


@pytest.mark.parametrize("slower", [1.0, 1.1, 1.3, 2.0])
def test_a_drafter_that_is_always_wrong_costs_less_than_two_percent(slower: float) -> None:
    wrong = Choice("wrong", prior=0.7)
    times = {"none": PLAIN, "wrong": Times(**{name: slower * seconds for name, seconds in asdict(PLAIN).items()})}
    ratios = [
        play(
            [NONE, wrong],
            Machine(times.__getitem__, lambda name: 0.01 * (slower - 1.0), rng=random.Random(seed)),
            lambda name, token: (0.0, float(name == "none")),
            [64] * 8,
        ).ratio
        for seed in SEEDS
    ]
    assert fmean(ratios) > 0.98


def test_a_drafter_that_loses_even_when_it_is_right_is_never_tried() -> None:
    slow = machine(Times(right=0.08, wrong=0.11, silent=0.08))
    outcome = play([NONE, MODULE], slow, lambda name, token: (float(name == "pdm"), float(name == "none")), [64] * 20)
    assert outcome.ratio == pytest.approx(1.0)
    assert outcome.controller.probes == 0


def test_a_losing_choice_is_left_within_sixteen_tokens() -> None:
    """Its text has become strange; nothing was known to be amiss before."""
    session = Controller(2, ALL, Measured({"none": PLAIN, "ngram": PLAIN, "pdm+ngram": PLAIN, "pdm": PLAIN})).begin(512)
    now, tokens = 0.0, 0
    session.sampled(now, 0, 1, rejected=False)
    while session.choice.listens and tokens < 100:
        tokens += 1
        now += 0.09
        session.answered()
        session.sampled(now, 2, 1, rejected=True)
    assert tokens <= 16


def test_beside_other_requests_the_choice_is_not_frozen() -> None:
    measured = Measured({"none": PLAIN, "ngram": PLAIN, "pdm+ngram": OWN_DEVICE, "pdm": OWN_DEVICE}, free=["ngram"])
    session = Controller(2, ALL, measured).begin(512)
    assert session.choice.listens
    session.sampled(0.0, 0, 1, rejected=False, alone=False)
    for _ in range(64):
        session.sampled(0.0, 2, 1, rejected=session.choice is not NONE, alone=False)
    assert session.choice is NONE


@given(
    st.lists(st.tuples(st.floats(0.001, 5.0), st.booleans(), st.booleans(), st.booleans()), max_size=300),
    st.integers(1, 500),
    st.integers(1, 8),
)
def test_whatever_happens_it_listens_to_the_end_or_not_at_all(
    events: list[tuple[float, bool, bool, bool]], limit: int, stages: int
) -> None:
    controller = Controller(stages, ALL, Measured({"none": PLAIN, "pdm": SHARED_CORES}))
    session, now, deaf, switches = controller.begin(limit), 0.0, False, 0
    session.sampled(now, 0, 1, rejected=False)
    before = session.choice
    for seconds, full, answers, alone in events:
        assert not (deaf and session.listening)
        assert session.listening or not session.choice.listens
        deaf = not session.listening
        now += seconds
        session.foreseen(NGRAM, Judgement.RIGHT if full else Judgement.WRONG)
        if answers:
            session.answered()
        session.sampled(now, 1 if full else stages, 1, rejected=not full, alone=alone)
        switches += session.choice is not before
        before = session.choice
    session.end()
    assert controller.switches >= switches
    assert all(rate > 0 for rate in controller.predicted().values())


def test_a_single_choice_always_runs() -> None:
    session = Controller(2, [BOTH]).begin(100)
    for now in range(100):
        session.sampled(float(now), 2, 1, rejected=False)
        assert session.choice is BOTH
        assert session.listening


def test_where_nothing_can_be_told_apart_the_cheapest_is_taken() -> None:
    assert (
        Controller(2, [NONE, NGRAM], Measured({"none": Times(1, 1, 1), "ngram": Times(1, 1, 1)})).begin(10).choice
        is NONE
    )


def test_what_is_lost_before_the_first_draft_counts() -> None:
    """A module that takes a second over each prompt is not for answers of ten tokens."""
    times = Measured({"none": Times(0.05, 0.1, 0.1), "pdm": Times(0.05, 0.1, 0.1)})
    chosen = []
    for tokens in (10, 500):
        controller = Controller(2, [NONE, MODULE], times)
        for _ in range(20):
            session, now = controller.begin(tokens), 0.0
            session.sampled(now, 0, 1, rejected=False)
            first = session.choice
            for token in range(1, tokens):
                late = session.choice is MODULE and token == 1
                now += 1.1 if late else 0.05 if session.choice is MODULE else 0.1
                session.sampled(now, 2 if late or session.choice is NONE else 1, 1, rejected=False)
                session.answered()
            session.end()
        chosen.append(first)
    assert chosen == [NONE, MODULE]


def test_choices_that_listen_end_where_hidden_states_are_lost() -> None:
    controller = Controller(2, [NONE, MODULE], Measured({"none": Times(0.05, 0.1, 0.1), "pdm": Times(0.09, 0.2, 0.2)}))
    session = controller.begin(1000)
    assert session.choice is NONE
    session.deafen()
    for now in range(1000):
        session.sampled(float(now), 2, 1, rejected=False)
        assert session.choice is NONE
    with pytest.raises(ValueError, match="hidden states"):
        Controller(2, [MODULE]).begin(10).deafen()

"""`echelon simulate` against the speed law, and against small cases worked out by hand."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.simulate.advice import advise, best_shape
from speculation.simulate.events import simulate
from speculation.simulate.pipeline import Pipeline, speed_law
from speculation.simulate.presets import Presets, load_presets, machine, sources
from speculation.simulate.rounds import (
    best_drafts,
    draft_then_verify,
    tensor_parallel,
    tokens_per_round,
)
from tests.unit.speculation.pipeline_sim import PipelineSim, Request
from workers.shared.errors import ConfigError
from workers.shared.frames import Shape

times = st.floats(0.0, 3.0)
pipelines = st.builds(
    Pipeline,
    stage_ms=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6).map(tuple),
    head_ms=times,
    overhead_ms=times,
    hop_ms=times,
    control_ms=times,
    commit_ms=times,
    draft_ms=times,
)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("width", [1, 2, 8])
def test_where_only_stages_take_time_the_speed_law_holds(stages: int, acceptance: float, width: int) -> None:
    tokens = {0.0: 20, 0.5: 250, 0.8: 500, 1.0: 250 * width}[acceptance]
    got = simulate(Pipeline((5.0,) * stages), acceptance, width=width, tokens=tokens)
    law = speed_law(stages, got.acceptance, width)
    assert got.tokens_per_second == pytest.approx(200 * law, rel=0.03)
    assert got.tokens_per_cycle == pytest.approx(law, rel=0.03)


def test_frames_of_several_tokens_take_as_long_as_their_rows_cost() -> None:
    pipeline = Pipeline((5.0, 5.0), row_cost=(1.0, 1.5, 2.0))
    cheap = simulate(Pipeline((5.0, 5.0)), 1.0, width=4, tokens=400).tokens_per_second
    assert simulate(pipeline, 1.0, width=4, tokens=400).tokens_per_second == pytest.approx(cheap / 2, rel=0.02)
    assert simulate(pipeline, None, width=4, tokens=40).tokens_per_second == pytest.approx(100)


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_one_more_frame_costs_one_more_cycle_a_rejection(acceptance: float) -> None:
    got = simulate(Pipeline((1.0,) * 4), acceptance, delta=1, tokens=400)
    a = got.acceptance
    assert got.tokens_per_second == pytest.approx(1000 / (a + (1 - a) * 5), rel=0.01)


@given(pipelines, st.integers(2, 40))
@settings(max_examples=25)
def test_without_drafts_every_token_takes_the_whole_way(pipeline: Pipeline, tokens: int) -> None:
    got = simulate(pipeline, None, tokens=tokens)
    assert got.tokens_per_second == pytest.approx(1000 / pipeline.token_ms)
    assert got.tokens_per_cycle == pytest.approx(1 / pipeline.stages)


@given(pipelines, st.floats(0, 1), st.integers(0, 2))
@settings(max_examples=25)
def test_nothing_is_faster_than_its_slowest_part(pipeline: Pipeline, acceptance: float, delta: int) -> None:
    got = simulate(pipeline, acceptance, delta=delta, tokens=60)
    slowest = max(pipeline.service_ms(stage) for stage in range(pipeline.stages))
    rank_0 = pipeline.commit_ms
    assert got.tokens_per_second <= 1000 / max(slowest, rank_0) * (1 + 1e-9)
    assert all(0 <= share <= 1 for share in got.busy)


def test_a_full_pipeline_runs_at_the_pace_of_its_slowest_part() -> None:
    slow_stage = simulate(Pipeline((1.0, 3.0, 1.0), control_ms=0.1, hop_ms=0.5), 1.0, delta=1)
    assert slow_stage.tokens_per_second == pytest.approx(1000 / 3, rel=0.01)
    slow_draft = simulate(Pipeline((1.0, 1.0), draft_ms=2.0, commit_ms=0.5), 1.0)
    assert slow_draft.tokens_per_second == pytest.approx(1000 / 2.5, rel=0.01)


def test_a_credit_less_than_the_loop_needs_leaves_a_gap_that_delta_closes() -> None:
    # With n frames in flight, the n-th next frame waits for the way of the sample back: n cycles take one loop.
    pipeline = Pipeline((2.0,) * 4, control_ms=0.2, commit_ms=0.1)
    tight = simulate(pipeline, 1.0)
    assert tight.tokens_per_second == pytest.approx(1000 * 4 / pipeline.token_ms, rel=0.01)
    assert simulate(pipeline, 1.0, delta=1).tokens_per_second == pytest.approx(500, rel=0.01)


@pytest.mark.parametrize("stages", [1, 3, 5])
@pytest.mark.parametrize("acceptance", [0.0, 1.0])
@pytest.mark.parametrize("delay", [0.02, 0.4])
def test_it_agrees_with_the_simulation_that_the_schedule_is_tested_with(
    stages: int, acceptance: float, delay: float
) -> None:
    oracle = PipelineSim(stages, acceptance=acceptance, rng=random.Random(2), control=delay)
    (outcome,) = oracle.run([Request([1], 100)])
    expected = 1000 * 99 / (outcome.last_at - outcome.first_at)
    got = simulate(Pipeline((1.0,) * stages, hop_ms=delay, control_ms=delay), acceptance, tokens=100)
    assert got.tokens_per_second == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("pipeline", "acceptance", "tokens"), [(Pipeline((1.0,)), 1.5, 9), (Pipeline((1.0,)), 0.5, 1)])
def test_what_cannot_be_simulated_is_refused(pipeline: Pipeline, acceptance: float, tokens: int) -> None:
    with pytest.raises(ValueError, match=r"acceptance|tokens"):
        simulate(pipeline, acceptance, tokens=tokens)


@pytest.mark.parametrize("fields", [{"stage_ms": ()}, {"stage_ms": (0.0,)}, {"stage_ms": (1.0,), "hop_ms": -1.0}])
def test_impossible_times_are_refused_by_name(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"stage_ms|hop_ms"):
        Pipeline(**fields)  # type: ignore[arg-type]


@given(st.integers(1, 8), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=15)
def test_tokens_of_a_round_are_those_of_drawing_each_draft(drafts: int, acceptance: float, seed: int) -> None:
    rng = random.Random(seed)
    total = 0
    for _ in range(4000):
        accepted = 0
        while accepted < drafts and rng.random() < acceptance:
            accepted += 1
        total += accepted + 1
    assert tokens_per_round(drafts, acceptance) == pytest.approx(total / 4000, rel=0.08)


def test_rounds_worked_out_by_hand() -> None:
    pipeline = Pipeline((10.0, 10.0), draft_ms=2.0)
    assert draft_then_verify(pipeline, 5, 1.0) == pytest.approx(1000 * 6 / 30)
    assert draft_then_verify(pipeline, 1, 0.0) == pytest.approx(1000 / 22)
    assert best_drafts(pipeline, 0.0) == 1
    assert best_drafts(pipeline, 1.0, most=7) == 7
    assert tensor_parallel(40.0, 4, 50, 0.1) == pytest.approx(50.0)
    with pytest.raises(ValueError, match="drafts"):
        draft_then_verify(pipeline, 0, 0.5)


@given(pipelines, st.integers(1, 8), st.integers(1, 30))
@settings(max_examples=25)
def test_rounds_yield_all_drafts_and_a_token_where_none_is_rejected(
    pipeline: Pipeline, drafts: int, rounds: int
) -> None:
    got = simulate(pipeline, 1.0, drafts=drafts, tokens=1 + rounds * (drafts + 1))
    assert got.tokens_per_second == pytest.approx(draft_then_verify(pipeline, drafts, 1.0))
    assert got.tokens_per_cycle == pytest.approx((drafts + 1) / pipeline.stages)


@given(pipelines, st.integers(1, 8), st.integers(20, 60))
@settings(max_examples=25)
def test_rounds_yield_one_token_where_all_are_rejected(pipeline: Pipeline, drafts: int, tokens: int) -> None:
    got = simulate(pipeline, 0.0, drafts=drafts, tokens=tokens)
    # The last rounds, which are as many as drafts, have fewer of them: no token may follow the limit.
    fewer = sum(pipeline.draft_ms for left in range(1, tokens) for _ in range(max(0, drafts - left + 1)))
    whole = (tokens - 1) * (drafts * pipeline.draft_ms + pipeline.token_ms) - fewer
    assert got.tokens_per_second == pytest.approx(1000 * (tokens - 1) / whole)
    assert got.tokens_per_cycle == pytest.approx(1 / pipeline.stages)


@pytest.mark.parametrize("drafts", [1, 4, 7])
@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_rounds_yield_what_the_closed_form_expects(drafts: int, acceptance: float) -> None:
    pipeline = Pipeline((5.0,) * 4, head_ms=1.0, hop_ms=0.2, control_ms=0.1, commit_ms=0.1, draft_ms=0.7)
    got = simulate(pipeline, acceptance, drafts=drafts, tokens=800)
    assert got.acceptance == pytest.approx(acceptance, abs=0.05)
    assert got.tokens_per_second == pytest.approx(draft_then_verify(pipeline, drafts, got.acceptance), rel=0.03)


@given(pipelines, st.integers(0, 2))
@settings(max_examples=25)
def test_pipelined_drafts_that_are_all_wrong_gain_nothing(pipeline: Pipeline, delta: int) -> None:
    got = simulate(pipeline, 0.0, delta=delta, tokens=50)
    none = simulate(pipeline, None, tokens=50)
    assert got.tokens_per_second <= none.tokens_per_second * (1 + 1e-9)
    assert got.tokens_per_cycle == pytest.approx(1 / pipeline.stages)


@given(pipelines)
@settings(max_examples=25)
def test_one_device_takes_all_layers_one_after_the_other(pipeline: Pipeline) -> None:
    single = pipeline.single
    assert simulate(single, None, tokens=20).tokens_per_second == pytest.approx(1000 / single.token_ms)
    left_out = (pipeline.stages - 1) * (pipeline.hop_ms + pipeline.overhead_ms)
    assert single.token_ms == pytest.approx(pipeline.token_ms - left_out)


@pytest.fixture(scope="module")
def presets() -> Presets:
    return load_presets()


def test_every_preset_makes_a_machine_and_names_its_source(presets: Presets) -> None:
    for box, preset in presets.boxes.items():
        for model in presets.models:
            for weights in presets.weights:
                made = machine(presets, box, model, weights)
                assert made.pipeline.stages == preset.count
    for group in (presets.gpus, presets.links, presets.models, presets.weights):
        assert all(len(entry.source) > 5 for entry in group.values())


def test_the_sources_of_what_was_used_are_told_and_what_is_assumed(presets: Presets) -> None:
    told = dict(sources(presets, ["2+2x3090-10gbe"], ["8b"], ["4bit"]))
    assert set(told) == {"rtx3090", "pcie4-x16", "10gbe", "8b", "4bit", "efficiency", "costs"}
    assert told["costs"].endswith("(assumed)")
    assert not told["rtx3090"].endswith("(assumed)")


def test_sizes_are_those_of_the_models_as_published(presets: Presets) -> None:
    published = {"8b": 8.03e9, "27b": 27.0e9, "70b": 70.6e9}
    tied = {"27b"}
    for name, total in published.items():
        model = presets.models[name]
        heads = 1 if name in tied else 2
        assert model.layers * model.layer_parameters + heads * model.head_parameters == pytest.approx(total, rel=0.01)


def test_an_unknown_preset_is_refused_with_the_choices(presets: Presets) -> None:
    with pytest.raises(ConfigError, match=r"--box 3xabacus: choose from 2x3090"):
        machine(presets, "3xabacus", "8b", "4bit")


def test_advice_says_no_where_another_method_is_faster_or_the_model_does_not_fit(presets: Presets) -> None:
    fast_links = advise(machine(presets, "8xh100", "70b", "16bit"), [0.65], tokens=300)
    assert fast_links is not None
    assert fast_links.verdict.startswith("no: tensor parallelism")
    assert fast_links.one_device is None
    assert advise(machine(presets, "2x3090-x4", "70b", "16bit"), [0.65], tokens=300) is None


def test_advice_says_yes_where_nothing_else_is_as_fast(presets: Presets) -> None:
    good = advise(machine(presets, "8x3090-x4", "8b", "4bit"), [0.8], tokens=300)
    assert good is not None
    assert good.verdict.startswith("yes")
    assert good.speculative[0] > good.none


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_branches_lie_between_a_chain_of_first_candidates_and_one_that_knows_which_is_right(stages: int) -> None:
    acceptance, rescue, found = 0.82, 0.42, [0.0]
    for breadth in (1, 2, 4):
        hit = 1 - (1 - acceptance) * (1 - rescue) ** (breadth.bit_length() - 1)
        got = simulate(Pipeline((1.0,) * stages), acceptance, breadth=breadth, rescue=rescue, tokens=500)
        assert 0.97 * found[-1] < got.tokens_per_cycle < 1.03 * speed_law(stages, hit)
        assert got.tokens_per_second == pytest.approx(1000 * got.tokens_per_cycle, rel=0.01)
        found.append(got.tokens_per_cycle)
    assert found[1] == pytest.approx(speed_law(stages, acceptance), rel=0.03)
    assert found[3] > 1.05 * found[1]
    lost = simulate(Pipeline((1.0,) * stages), acceptance, breadth=4, rescue=0.0, tokens=500).tokens_per_cycle
    assert lost == pytest.approx(found[1], rel=0.04)


@pytest.mark.parametrize(
    ("stages", "rows", "acceptance"),
    [(2, (1.0, 1.03, 1.07, 1.1, 1.22), 0.72), (8, (1.0, 1.03, 1.07, 1.1, 1.22), 0.72), (4, (1.0, 1.5, 2.4), 0.8)],
)
def test_the_advised_shape_is_the_fastest_of_all(stages: int, rows: tuple[float, ...], acceptance: float) -> None:
    pipeline = Pipeline((10.0,) * stages, row_cost=rows)
    shape, speed = best_shape(pipeline, acceptance, tokens=200)
    others = [Shape(width, breadth) for width in (1, 2, 4, 8) for breadth in (1, 2, 4, 8)]
    assert shape.rows <= 2 ** (len(rows) - 1)
    assert speed >= 0.95 * max(
        simulate(pipeline, acceptance, width=other.width, breadth=other.breadth, tokens=200).tokens_per_second
        for other in others
        if other.rows <= 2 ** (len(rows) - 1)
    )

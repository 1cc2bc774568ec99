"""From measurements to the table: every figure against a value worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.bench.analysis.breakdown import CycleParts, stage_shares
from speculation.bench.analysis.cells import Answer, Cell
from speculation.bench.analysis.figures import percentile, rows, tokens_per_second
from speculation.bench.analysis.identity import differences
from speculation.bench.analysis.report import Provenance, Results, markdown
from speculation.bench.configuration import BenchSettings, Contender
from speculation.bench.near_ties import Branch, bias, proven
from tests.unit.bench.bench_cells import MS, answer, cell, counters
from workers.shared.messages import StageTimings
from workers.shared.options.engine import EngineOptions

PROVENANCE = Provenance("echelon bench tiny", "f" * 40, "2026-01-01", "3.11", {}, "A CPU", 2, 8.0, [], 0.0)


def test_figures_of_one_row() -> None:
    # 2 answers of 11 tokens: 20 after the first, 12 of them right, 4 wrong, in 30 cycles of 2 stages.
    stages = [
        StageTimings(frames=24, tokens=2 * 3 + 22, forward_ns=2 * 3 * 2 * MS + 22 * 5 * MS, send_ns=22 * MS),
        StageTimings(frames=24, tokens=2 * 3 + 22, forward_ns=22 * 6 * MS, sample_ns=22 * 2 * MS),
    ]
    counted = counters(accepted=12, rejected=4, discarded=5, cycles=30, stages=stages)
    counted.stats.counts.bounded, counted.stats.counts.bound = 10, 8.5
    prefill = [StageTimings(frames=1, tokens=5, forward_ns=10 * MS), StageTimings(frames=1, tokens=5)]
    answers = [answer("a", list(range(11))), answer("b", list(range(11)), first_ms=300, gap_ms=30)]
    (row,) = rows([cell("ngram", 2, answers, counted=counted, prefill=prefill, energy_mj=4400, devices=4)])
    assert row.tokens == 22
    assert row.tokens_per_second == pytest.approx(20 / 0.4)
    assert row.ttft_ms == pytest.approx(200)
    assert (row.inter_token_ms_p50, row.inter_token_ms_p99) == (10, 30)
    assert row.acceptance == pytest.approx(12 / 16)
    assert row.acceptance_bound == pytest.approx(0.85)
    assert row.coverage == pytest.approx(16 / 20)
    assert row.tokens_per_cycle == pytest.approx(20 / 30)
    assert pytest.approx(2 * 20 / 30) == row.E
    assert row.hit_at == {"1": 0.75, "2": 0.75, "4": 1.0, "8": 1.0, "16": 1.0}
    assert row.stage_ms == pytest.approx(8)  # without the prompt's share: 5 ms in the first stage, 8 in the second
    assert row.draft_ms == pytest.approx(2)
    assert row.cycle_ms == pytest.approx(12)
    assert row.fixed_cost_ms == pytest.approx(4)
    assert (row.devices, row.tokens_per_second_per_device) == (4, pytest.approx(12.5))
    assert row.joules_per_token == pytest.approx(0.2)
    assert row.engine_tokens_per_second == pytest.approx(20 / (30 * 0.02))
    assert row.error is None


def test_a_draft_slower_than_the_stages_is_not_fixed_cost() -> None:
    counted = counters(accepted=1, rejected=0, cycles=3, stages=[StageTimings(frames=9, tokens=9, forward_ns=9 * MS)])
    counted.stats.draft_ns = 5 * MS
    (row,) = rows([cell("ngram", 1, [answer("a", [1, 2])], counted=counted, prefill=[StageTimings()])])
    assert row.fixed_cost_ms == pytest.approx(12 - 5)


def test_speed_ups_are_against_the_same_stages_temperature_and_data_set() -> None:
    def at(method: str, stages: int, gap: int, temperature: float = 0.0) -> object:
        return cell(method, stages, [answer("a", [1, 2, 3], gap_ms=gap)], temperature=temperature)

    cells = [
        at("none", 2, 20), at("ngram", 2, 10), at("single", 1, 12), at("hf", 1, 40),
        at("none", 3, 40), at("ngram", 3, 10), at("none", 3, 5, 1.0),
    ]  # fmt: skip
    found = {(row.method, row.stages, row.temperature): row for row in rows(cells)}  # type: ignore[arg-type]
    ngram = found["ngram", 3, 0.0]
    assert ngram.speedup_none == pytest.approx(4)
    assert ngram.speedup_single == pytest.approx(1.2)
    assert ngram.speedup_hf == pytest.approx(4)
    assert found["ngram", 2, 0.0].speedup_none == pytest.approx(2)
    assert found["none", 3, 1.0].speedup_single is None


def test_repeats_give_a_median_and_a_spread_and_data_sets_a_common_row() -> None:
    cells = [
        cell("none", 2, [answer("a", [1, 2], gap_ms=gap)], repeat=repeat, dataset=name)
        for repeat, gap in enumerate((10, 20, 40))
        for name in ("one", "two")
    ]
    found = {row.dataset: row for row in rows(cells)}
    assert set(found) == {"one", "two", "all"}
    one = found["one"]
    assert (one.tokens_per_second_least, one.tokens_per_second, one.tokens_per_second_most) == (25, 50, 100)
    assert (found["all"].prompts, found["all"].repeats) == (6, 3)


def test_counts_that_do_not_add_up_are_an_error() -> None:
    counted = counters(accepted=3, rejected=1, cycles=5, stages=[StageTimings()])
    counted.stats.counts.drafted = 7
    (row,) = rows([cell("ngram", 1, [answer("a", [1, 2])], counted=counted, prefill=[StageTimings()])])
    assert row.error == "7 drafts, but 4 verified and 0 discarded"


def test_methods_measured_apart_are_marked() -> None:
    together = [
        cell("none", 2, [answer("a", [1, 2])], beside=[Contender("ngram", 2)]),
        cell("ngram", 2, [answer("a", [1, 2])], beside=[Contender("none", 2)]),
        cell("none", 3, [answer("a", [1, 2])]),
    ]
    assert all(row.interleaved for row in rows(together))
    beside_two = cell("single", 1, [answer("a", [1, 2])], beside=[Contender("none", 2), Contender("ngram", 2)])
    assert all(row.interleaved for row in rows([*together, beside_two]))
    alone = cell("hf", 1, [answer("a", [1, 2])], beside=[Contender("none", 2)])
    assert {row.method for row in rows([*together, alone]) if not row.interleaved} == {"hf"}
    apart = [*together, cell("pdm", 2, [answer("a", [1, 2])])]
    assert {row.method for row in rows(apart) if not row.interleaved} == {"none", "ngram", "pdm"}
    assert "Not measured prompt by prompt" in markdown(Results(PROVENANCE, {}, {}, ["c"], 0.0, rows(apart)))


def test_the_parts_of_a_cycle_are_those_of_the_slowest_stage_without_its_prompts() -> None:
    stages = [
        StageTimings(frames=11, tokens=13, forward_ns=46 * MS, send_ns=10 * MS, receive_ns=30 * MS, idle_ns=999 * MS),
        StageTimings(frames=11, tokens=13, forward_ns=20 * MS, sample_ns=20 * MS),
    ]
    prefill = [StageTimings(frames=1, tokens=3, forward_ns=6 * MS), StageTimings(frames=1, tokens=3)]
    counted = counters(accepted=10, cycles=10, stages=stages)
    (row,) = rows([cell("ngram", 2, [answer("a", list(range(11)))], counted=counted, prefill=prefill)])
    assert row.stage_ms == pytest.approx(4)
    assert row.cycle_parts == CycleParts(
        forward=4, sample=0, emulate=0, send=1, receive=3, wait=12, announce=3, commit=1, draft=2
    )


def test_energy_is_known_only_where_every_cell_knows_it() -> None:
    def of(repeat: int, energy: int | None) -> Cell:
        return cell("none", 2, [answer("a", [1, 2])], repeat=repeat, energy_mj=energy)

    assert rows([of(0, 3000), of(1, 5000)])[0].joules_per_token == pytest.approx(2)
    assert rows([of(0, 3000), of(1, None)])[0].joules_per_token is None


# --- identity ---


def test_a_different_token_is_found_and_makes_an_error_row() -> None:
    cells = [
        cell("none", 2, [answer("a", [1, 2, 3]), answer("b", [4, 5])]),
        cell("ngram", 2, [answer("a", [1, 2, 3]), answer("b", [4, 6])]),
        cell("none", 5, [answer("a", [1, 2, 3, 4]), answer("b", [4, 5])]),
    ]
    found = {(d.contender.method, d.contender.stages): (d.question, d.position) for d in differences(cells)}
    assert found == {("ngram", 2): ("b", 1), ("none", 5): ("a", 3)}
    by_method = {(row.method, row.stages): row for row in rows(cells)}
    assert by_method["none", 2].error is None
    wrong = by_method["ngram", 2]
    assert wrong.differing == 1
    assert wrong.error == "1 of 2 answers differ from none, n=2; first: one b at token 1"
    assert wrong.error in markdown(Results(PROVENANCE, {}, {}, ["c"], 0.0, list(by_method.values())))


def test_draft_then_verify_may_differ_at_near_ties_but_not_in_the_prompt() -> None:
    reference = cell("none", 2, [answer("a", [1, 2, 3]), answer("b", [4, 5])])
    off = cell("dtv-model", 2, [answer("a", [1, 9, 9]), answer("b", [4, 5])], near_ties=["a"])
    (row,) = [row for row in rows([reference, off]) if row.method == "dtv-model"]
    assert (row.differing, row.near_ties, row.error) == (1, 1, None)
    assert "Near-ties" in markdown(Results(PROVENANCE, {}, {}, ["c"], 0.0, [row]))
    other = Answer("b", [9], [4, 5], [1, 2])
    off = cell("dtv-model", 2, [answer("a", [1, 9, 9]), other], near_ties=["a", "b"])
    (row,) = [row for row in rows([reference, off]) if row.method == "dtv-model"]
    assert (row.differing, row.near_ties) == (2, 1)
    assert row.error == "1 of 2 answers differ from none, n=2; first: one b in the prompt"


def test_a_difference_that_is_not_proven_is_an_error_whatever_the_method() -> None:
    cells = [cell("dtv-model", 2, [answer("a", [1, 9])]), cell("ngram", 2, [answer("a", [1, 2])])]
    (row,) = [row for row in rows(cells) if row.differing]
    assert (row.method, row.near_ties) == ("dtv-model", 0)
    assert row.error is not None
    assert row.error.startswith("1 of 1 answers differ from ngram, n=2")


def test_the_contender_is_asked_at_the_first_token_that_differs() -> None:
    reference = cell("none", 2, [answer("a", [1, 2, 3]), answer("b", [4, 5, 6]), answer("c", [7])])
    off = cell("dtv-ngram", 2, [answer("a", [1, 9, 9]), answer("b", [4, 5, 8]), answer("c", [7])])
    asked = []

    def prefers(branch: Branch) -> bool:
        asked.append(branch)
        return branch.question == "b"

    assert proven(off, [off, reference], prefers) == ["b"]
    assert asked == [Branch("a", [1, 2, 3, 1], 2), Branch("b", [1, 2, 3, 4, 5], 6)]
    asked.clear()
    assert proven(cell("ngram", 2, off.answers), [reference], prefers) == []
    assert proven(off, [cell("none", 2, reference.answers, temperature=1.0)], prefers) == []
    assert asked == []
    assert proven(cell("ngram", 2, off.answers), [reference], prefers, wide=True) == ["b"]


def test_how_near_a_tie_has_to_be_depends_on_the_numbers() -> None:
    assert bias(BenchSettings("tiny", 8)) == 1e-3
    assert bias(BenchSettings("default", 8)) == 0.25
    assert bias(BenchSettings("tiny", 8, engine=EngineOptions(dtype="bfloat16"))) == 0.25
    assert bias(BenchSettings("tiny", 8, engine=EngineOptions(device=("cuda",)))) == 0.25


def test_prompts_that_differ_are_told_from_tokens_that_do() -> None:
    odd = answer("a", [1, 2])
    other = type(odd)("a", [9], odd.tokens, odd.times_us)
    (found,) = differences([cell("none", 2, [odd]), cell("hf", 1, [other])])
    assert found.position == -1


@pytest.mark.parametrize(("temperature", "expected"), [(0.0, 1), (1.0, 0)])
def test_hugging_face_is_compared_only_where_it_does_not_sample(temperature: float, expected: int) -> None:
    cells = [
        cell("none", 2, [answer("a", [1, 2])], temperature=temperature),
        cell("hf", 1, [answer("a", [1, 3])], temperature=temperature),
    ]
    assert len(differences(cells)) == expected


def test_rehearsals_are_never_compared_and_always_marked() -> None:
    cells = [
        cell("none", 2, [answer("a", [1, 2])]),
        cell("scripted", 2, [answer("a", [7, 8])], rehearsal=True),
    ]
    assert differences(cells) == []
    table = markdown(Results(PROVENANCE, {}, {}, ["c"], 0.0, rows(cells)))
    assert "scripted (rehearsal)" in table
    assert "its text means nothing" in table


def test_a_busy_machine_and_mixed_commits_are_told() -> None:
    made = rows([cell("none", 2, [answer("a", [1, 2])])])
    quiet = markdown(Results(PROVENANCE, {}, {}, ["c"], 0.1, made))
    assert "not idle" not in quiet
    assert "several commits" not in quiet
    told = markdown(Results(PROVENANCE, {}, {}, ["c", "d"], 3.2, made))
    assert "its load average was 3.2" in told
    assert "several commits: c, d" in told


# --- small parts ---


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50).map(sorted), st.floats(0.01, 1.0))
def test_percentile_is_the_smallest_value_that_covers_the_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < share * len(values) + 1e-6


def test_percentile_and_speed_of_nothing() -> None:
    assert percentile([], 0.5) == 0
    assert tokens_per_second([answer("a", [5])]) == 0


@given(st.lists(st.integers(0, 10**9), min_size=5, max_size=5), st.integers(0, 10**10))
def test_shares_of_a_stage_add_up(parts: list[int], active_ns: int) -> None:
    forward, sample, emulate, send, receive = parts
    shares = stage_shares(
        StageTimings(forward_ns=forward, sample_ns=sample, emulate_ns=emulate, send_ns=send, receive_ns=receive),
        active_ns,
    )
    assert shares.busy + shares.receive + shares.idle == pytest.approx(1)
    assert shares.idle >= -1e-9

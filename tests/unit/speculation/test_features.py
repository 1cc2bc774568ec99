"""The rules of the draft module's features: maps, plans and masks, against the tables of the method and an oracle."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.features import (
    FeatureMap,
    MaskRule,
    Row,
    authors_chain_rows,
    auto_anchors,
    chain_rows,
    check_anchors,
    check_fixed_stages,
    plan_draft,
    steady_since,
    visible_depth,
)
from speculation.decisions.taps import columns_of_stages
from workers.shared.errors import ConfigError


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, ...]:
    inner = draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    return (*inner, draw(st.integers(0, 4)))


@st.composite
def feature_maps(draw: st.DrawFn) -> FeatureMap:
    split = draw(splits())
    others = draw(st.sets(st.integers(1, sum(split)), max_size=6))
    return FeatureMap((0, *sorted(others)), split)


class TestAnchors:
    @pytest.mark.parametrize(
        ("layers", "stages", "anchors", "kinds"),
        [
            (32, 4, (0, 8, 24, 31, 32), (0, 1, 1, 2, 4)),
            (32, 8, (0, 4, 12, 24, 31), (0, 1, 1, 2, 2, 2, 3, 3, 4)),
            (32, 16, (0, 2, 6, 12, 31), (0, 1, 1, 2, 2, 2, *[3] * 10, 4)),
            (36, 4, (0, 9, 27, 35, 36), (0, 1, 1, 2, 4)),
            (36, 9, (0, 4, 12, 24, 35), (0, 1, 1, 2, 2, 2, 3, 3, 3, 4)),
            (36, 12, (0, 3, 9, 18, 35), (0, 1, 1, 2, 2, 2, *[3] * 6, 4)),
        ],
    )
    def test_auto_rule(self, layers: int, stages: int, anchors: tuple[int, ...], kinds: tuple[int, ...]) -> None:
        assert auto_anchors(layers, stages) == anchors
        check_fixed_stages(anchors, stages)
        assert FeatureMap(anchors, (layers // stages,) * stages).kinds() == kinds

    @pytest.mark.parametrize(
        ("stages", "kinds"),
        [
            (4, (0, 1, 2, 3, 4)),
            (8, (0, 0, 1, 1, 2, 2, 3, 3, 4)),
            (16, (*[0] * 4, *[1] * 4, *[2] * 4, *[3] * 4, 4)),
        ],
    )
    def test_fixed_list_of_the_authors(self, stages: int, kinds: tuple[int, ...]) -> None:
        features = FeatureMap((0, 8, 16, 24, 31), (32 // stages,) * stages)
        assert features.kinds() == kinds

    def test_unused_type_has_no_depth(self) -> None:
        assert 3 not in FeatureMap(auto_anchors(32, 4), (8,) * 4).kinds()

    def test_auto_anchors_of_two_stages_are_refused(self) -> None:
        anchors = auto_anchors(32, 2)
        assert anchors == (0, 16, 31, 32)
        with pytest.raises(ConfigError, match="only 3 depths"):
            check_fixed_stages(anchors, 2)

    def test_auto_rule_needs_a_divisor(self) -> None:
        with pytest.raises(ConfigError, match="divides 30 layers, not 4"):
            auto_anchors(30, 4)

    @pytest.mark.parametrize(
        ("anchors", "reason"),
        [
            ((), "first must be 0"),
            ((1, 2), "first must be 0"),
            ((0, 2, 2), "increase strictly"),
            ((0, 9), "last may be 8"),
        ],
    )
    def test_bad_anchors_are_refused(self, anchors: tuple[int, ...], reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            check_anchors(anchors, 8)

    def test_one_stage_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="at least 2"):
            check_fixed_stages((0,), 1)

    @pytest.mark.parametrize("split", [(), (0, 4), (4, 0, 4), (4, -1)])
    def test_bad_splits_are_refused(self, split: tuple[int, ...]) -> None:
        with pytest.raises(ConfigError, match="split"):
            FeatureMap((0,), split)

    @given(feature_maps())
    def test_a_depth_reads_only_layers_behind_it(self, features: FeatureMap) -> None:
        layer_ends = [sum(features.split[:stage]) for stage in range(features.stages + 1)]
        for depth, kind in enumerate(features.kinds()):
            assert features.anchors[kind] <= layer_ends[depth]
            assert all(anchor > layer_ends[depth] for anchor in features.anchors[kind + 1 :])
        assert features.kind(features.stages) == len(features.anchors) - 1

    @given(feature_maps())
    def test_every_anchor_has_one_stage_that_produces_it(self, features: FeatureMap) -> None:
        """The stages that send taps are told their own by `columns_of_stages`; the embedding is no stage's."""
        owned = columns_of_stages(features.anchors, features.split)
        produced = [features.anchors[place] for stage in range(features.stages) for place in owned.get(stage, ())]
        assert [0, *produced] == list(features.anchors)


class TestPlan:
    def test_worked_example_of_the_method(self) -> None:
        """n = 4, prompt 0..4, the draft for position 8 is wrong (specification, table 4.5)."""
        stages = 4
        table = [  # (origin, newest, cached before, rows, cached after)
            (5, 5, 5, "5:0", 5),
            (5, 6, 5, "5:1 6:0", 5),
            (5, 7, 5, "5:2 6:1 7:0", 5),
            (5, 8, 5, "5:3 6:2 7:1 8:0", 5),
            (5, 9, 5, "5:4 6:3 7:2 8:1 9:0", 6),
            (5, 10, 6, "6:4 7:3 8:2 9:1 10:0", 7),
            (8, 8, 7, "7:4 8:0", 8),
            (8, 9, 8, "8:1 9:0", 8),
            (8, 10, 8, "8:2 9:1 10:0", 8),
            (8, 11, 8, "8:3 9:2 10:1 11:0", 8),
            (8, 12, 8, "8:4 9:3 10:2 11:1 12:0", 9),
        ]
        for origin, newest, cached, rows, after in table:
            plan = plan_draft(stages, origin, newest, cached)
            assert " ".join(f"{row.position}:{row.depth}" for row in plan.rows) == rows
            assert cached + plan.persistent == after

    @given(st.integers(2, 6), st.integers(1, 5), st.lists(st.booleans(), max_size=40))
    def test_follows_the_cycle_by_cycle_oracle(self, stages: int, prompt: int, verdicts: list[bool]) -> None:
        oracle = _Cycles(stages, prompt)
        cached, origin = prompt, prompt
        verdict = iter(verdicts)
        for _ in range(60):
            plan = plan_draft(stages, origin, oracle.newest, cached)
            assert plan.rows == oracle.rows()
            cached += plan.persistent
            correction = oracle.step(verdict)
            if correction is not None:
                origin = correction
            assert cached == oracle.cached

    @given(st.integers(2, 6), st.integers(0, 20), st.integers(0, 20), st.data())
    def test_rows_reach_from_the_cache_to_the_newest(
        self, stages: int, origin: int, ahead: int, data: st.DataObject
    ) -> None:
        newest = origin + ahead
        cached = data.draw(st.integers(0, max(origin, newest - stages + 1)))
        plan = plan_draft(stages, origin, newest, cached)
        assert [row.position for row in plan.rows] == list(range(cached, newest + 1))
        assert plan.rows[-1] == Row(newest, 0)
        assert all(row.depth == stages for row in plan.rows[: plan.persistent])
        assert all(row.depth < stages for row in plan.rows[plan.persistent :])

    @given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 60))
    def test_tokens_of_one_frame_are_of_one_depth(self, stages: int, width: int, ahead: int) -> None:
        """As in a full pipeline: the drafts of a frame are made while the one before is in the first stage."""
        origin = 5
        newest = origin + ahead
        drafting = (newest + 1 - origin) // width  # number of the frame that the draft is for
        plan = plan_draft(stages, origin, newest, 0, width)
        for row in plan.rows:
            behind = drafting - 1 - (row.position - origin) // width  # stages that its frame has left
            expected = stages if row.position < origin else min(max(behind, 0), stages)
            assert row.depth == expected
        within = [
            plan_draft(stages, origin, newest - back, 0, width).rows for back in range((newest + 1 - origin) % width)
        ]
        assert all(plan.rows[: len(rows)] == rows for rows in within), "drafts of a frame share their rows"
        assert plan_draft(stages, origin, newest, plan.persistent, width).persistent == 0

    @pytest.mark.parametrize(("origin", "newest", "cached"), [(5, 5, 6), (5, 9, 7), (5, 4, 0), (5, 5, -1)])
    def test_a_cache_with_rows_that_are_not_final_is_refused(self, origin: int, newest: int, cached: int) -> None:
        with pytest.raises(ValueError, match="must be final"):
            plan_draft(4, origin, newest, cached)


@dataclass
class _Cycles:
    """The method's own bookkeeping (specification 4.3): an in-flight list and a pending token."""

    stages: int
    prompt: int
    in_flight: list[int] = field(default_factory=list)
    pending: int | None = None
    cached: int = 0

    def __post_init__(self) -> None:
        self.in_flight, self.cached = [self.prompt], self.prompt

    @property
    def newest(self) -> int:
        return self.in_flight[0]

    def rows(self) -> tuple[Row, ...]:
        finished = [] if self.pending is None else [Row(self.pending, self.stages)]
        return (*finished, *(Row(position, depth) for depth, position in reversed(list(enumerate(self.in_flight)))))

    def step(self, verdicts: Iterator[bool]) -> int | None:
        """One cycle; returns the position of the correction where a draft is rejected."""
        newest = self.newest
        if self.pending is not None:
            self.cached += 1
        self.pending = None
        if len(self.in_flight) == self.stages:
            self.pending = self.in_flight.pop()
            if not next(verdicts, True):
                self.in_flight = [self.pending + 1]
                return self.pending + 1
        self.in_flight.insert(0, newest + 1)
        return None


class TestMasks:
    @given(st.integers(2, 8), st.data())
    def test_the_newest_row_sees_what_inference_computes(self, stages: int, data: st.DataObject) -> None:
        """In the training form, every row that a draft depends on sees the rows that the plan of the draft holds."""
        fill = data.draw(st.integers(1, stages))
        newest = 20
        plan = plan_draft(stages, newest - fill + 1, newest, 0)
        depth_at = {row.position: row.depth for row in plan.rows}
        for row in plan.rows:
            if row.depth == stages:
                continue
            for position in range(row.position + 1):
                seen = visible_depth(MaskRule.CORRECTED, stages, fill, row.depth, row.position - position)
                assert seen == depth_at[position]

    @given(st.integers(2, 8), st.sampled_from(MaskRule), st.data())
    def test_a_chain_is_closed_under_visibility(self, stages: int, rule: MaskRule, data: st.DataObject) -> None:
        fill = data.draw(st.integers(1, stages))
        newest = 30
        needed, waiting = set(), [(0, newest)]
        while waiting:
            depth, position = waiting.pop()
            if (depth, position) in needed:
                continue
            needed.add((depth, position))
            seen = [(visible_depth(rule, stages, fill, depth, position - at), at) for at in range(position + 1)]
            waiting += [(other, at) for other, at in seen if other < stages]
        chain = chain_rows(stages, fill) if rule is MaskRule.CORRECTED else authors_chain_rows(stages, fill)
        assert needed == {(row.depth, newest - row.back) for row in chain}
        for row in chain:
            position = newest - row.back
            own = [
                at for at in range(position + 1) if visible_depth(rule, stages, fill, row.depth, position - at) < stages
            ]
            assert own == list(range(newest - row.last, position + 1))

    @given(st.integers(2, 8), st.data())
    def test_the_corrected_chain_holds_the_tokens_in_flight(self, stages: int, data: st.DataObject) -> None:
        fill = data.draw(st.integers(1, stages))
        assert chain_rows(stages, fill) == tuple((depth, depth, fill - 1) for depth in range(fill))

    @given(st.integers(2, 8), st.integers(1, 5), st.integers(1, 100))
    def test_rows_of_wide_frames_are_those_of_the_plan_and_repeat(self, stages: int, width: int, since: int) -> None:
        newest = 200
        plan = plan_draft(stages, newest - since + 1, newest, 0, width)
        chain = chain_rows(stages, since, width)
        unfinished = [row for row in plan.rows if row.depth < stages]
        assert [(newest - row.back, row.depth) for row in reversed(chain)] == unfinished
        assert {row.last for row in chain} == {len(chain) - 1}
        assert [row.back for row in chain] == list(range(len(chain)))
        assert steady_since(stages, width, since) <= since
        assert chain_rows(stages, steady_since(stages, width, since), width) == chain

    @given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 20), st.data())
    def test_drafts_of_a_frame_share_their_rows(self, stages: int, width: int, frame: int, data: st.DataObject) -> None:
        last = (frame + 1) * width - 1
        since = data.draw(st.integers(max(1, frame * width), max(1, last)))
        later, earlier = chain_rows(stages, max(1, last), width), chain_rows(stages, since, width)
        gone = max(1, last) - since
        assert [(row.back - gone, row.depth) for row in later[gone:]] == [(row.back, row.depth) for row in earlier]

    @pytest.mark.parametrize("stages", range(2, 7))
    def test_the_rules_differ_only_in_partly_filled_pipelines(self, stages: int) -> None:
        for fill in range(1, stages + 1):
            same = chain_rows(stages, fill) == authors_chain_rows(stages, fill)
            assert same == (fill in (1, stages))

    @pytest.mark.parametrize("fill", [0, 5])
    def test_impossible_fills_are_refused(self, fill: int) -> None:
        with pytest.raises(ValueError, match="of 4 stages"):
            authors_chain_rows(4, fill)

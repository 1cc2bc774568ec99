"""The random choices of training: pure, and a function of the seed alone."""

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.features import FeatureMap, MaskRule
from speculation.training.examples.batches import batches
from speculation.training.examples.data import Example, is_held_out
from speculation.training.examples.draws import SplitDraw, build_chain, draw_chains, draw_since, random_split


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 100), st.integers(0, 3))
def test_an_epoch_holds_every_example_once(lengths: list[int], budget: int, seed: int) -> None:
    order = batches(lengths, budget, seed)
    for _ in range(2):
        seen: list[int] = []
        while len(seen) < len(lengths):
            batch = next(order)
            assert len(batch) == 1 or sum(lengths[index] for index in batch) <= budget
            seen += batch
        assert sorted(seen) == list(range(len(lengths)))


def test_batches_repeat_with_the_seed() -> None:
    lengths = [3, 5, 7, 11] * 5
    assert list(islice(batches(lengths, 20, 1), 40)) == list(islice(batches(lengths, 20, 1), 40))
    assert list(islice(batches(lengths, 20, 1), 40)) != list(islice(batches(lengths, 20, 2), 40))


@given(st.integers(), st.integers(1, 40), st.floats(0, 20), st.data())
def test_random_splits_are_legal(seed: int, layers: int, head: float, data: st.DataObject) -> None:
    stages = data.draw(st.integers(2, layers + 1))
    split = random_split(random.Random(seed), layers, head, stages)
    assert len(split) == stages
    assert sum(split) == layers
    assert min(split[:-1]) >= 1
    assert split[-1] >= 0


def test_random_splits_vary_around_the_balanced_one() -> None:
    rng = random.Random(0)
    splits = {random_split(rng, 30, 8, 2) for _ in range(200)}
    assert len(splits) > 5
    assert (19, 11) in splits


def test_drawn_splits() -> None:
    draw = SplitDraw((0, 4), [1] * 30, 8, stages=(2, 3), splits=(), uneven=0.5)
    assert [features.split for features in draw.usual] == [(19, 11), (12, 13, 5)]
    rng = random.Random(0)
    drawn = [draw.draw(rng).split for _ in range(400)]
    assert {len(split) for split in drawn} == {2, 3}
    assert 150 < sum(split in {(19, 11), (12, 13, 5)} for split in drawn) < 280
    fixed = SplitDraw((0, 4), [1] * 30, 8, stages=(), splits=((20, 10),), uneven=0.5)
    assert {fixed.draw(rng).split for _ in range(20)} == {(20, 10)}


@given(st.integers(), st.floats(0, 1), st.integers(1, 20))
def test_an_epoch_is_no_older_than_the_prompt(seed: int, acceptance: float, most: int) -> None:
    assert 1 <= draw_since(random.Random(seed), acceptance, most) <= most


def test_verified_drafts_are_as_far_from_their_origin_as_runs_of_accepted_ones_go() -> None:
    rng = random.Random(0)
    drawn = [draw_since(rng, 0.6, 50) for _ in range(20_000)]
    for longer in range(1, 5):
        assert sum(since > longer for since in drawn) / len(drawn) == pytest.approx(0.6**longer, abs=0.01)


@given(st.integers(2, 6), st.sampled_from(MaskRule), st.data())
def test_chain_rows_and_what_they_see(stages: int, rule: MaskRule, data: st.DataObject) -> None:
    """Every token up to the row is seen once: unfinished in the chain, or finished."""
    fill = data.draw(st.integers(1, stages))
    newest = data.draw(st.integers(stages, 40))
    features = FeatureMap((0, 1, 3), (2,) * stages)
    chain = build_chain(features, newest, fill, rule)
    assert chain.newest == newest
    for place, row in enumerate(chain.rows):
        assert row.position == newest - place
        assert row.kind == features.kind(place)
        own = [chain.rows[index].position for index in row.own]
        assert sorted([*own, *range(row.finished)]) == list(range(row.position + 1))


@pytest.mark.parametrize("rule", MaskRule)
def test_chains_of_an_example(rule: MaskRule) -> None:
    features = FeatureMap((0, 4), (4, 4, 4, 4))
    newest = range(2, 30)
    every = draw_chains(random.Random(0), features, newest, share=1, acceptance=0.5, rule=rule)
    assert [chain.newest for chain in every] == [at for at in newest if rule is MaskRule.CORRECTED or at >= 4]
    assert {len(chain.rows) for chain in every} >= {1, 4}
    assert every == draw_chains(random.Random(0), features, newest, share=1, acceptance=0.5, rule=rule)
    some = draw_chains(random.Random(0), features, range(2, 2002), share=0.25, acceptance=0.5, rule=rule)
    assert 400 < len(some) < 600


@given(st.integers(0, 1000), st.integers(2, 5), st.integers(1, 5), st.integers(1, 30))
def test_drafts_of_wide_frames_are_of_the_example_and_of_one_frame(
    seed: int, stages: int, width: int, length: int
) -> None:
    features = FeatureMap((0, 1, 3), (2,) * stages)
    newest = range(5, 5 + length)
    chains = draw_chains(
        random.Random(seed), features, newest, share=1, acceptance=0.7, rule=MaskRule.CORRECTED, width=width
    )
    for chain in chains:
        assert 1 <= chain.drafts <= width
        assert chain.newest - chain.drafts + 1 in newest
        assert chain.newest in newest
        assert {row.kind for row in chain.rows[: chain.drafts - 1]} <= {0}  # of the frame that is being drafted


def test_wide_frames_are_drawn_as_often_as_makes_the_share() -> None:
    features = FeatureMap((0, 4), (4, 4))
    chains = draw_chains(
        random.Random(0), features, range(2, 8002), share=0.5, acceptance=0.8, rule=MaskRule.CORRECTED, width=4
    )
    assert sum(chain.drafts for chain in chains) == pytest.approx(0.5 * 8000, rel=0.1)


def test_positions_that_are_drafted_from() -> None:
    """The first answer token comes from the prefill; nothing is drafted after the last."""
    example = Example(tuple(range(10)), 6, 0.0, False)
    assert list(example.newest) == [6, 7, 8]


def test_held_out_prompts_are_about_the_share_and_stay_the_same() -> None:
    held = [is_held_out(f"prompt {number}", 0.1) for number in range(2000)]
    assert 140 < sum(held) < 260
    assert held == [is_held_out(f"prompt {number}", 0.1) for number in range(2000)]
    assert not any(is_held_out(f"prompt {number}", 0.0) for number in range(200))

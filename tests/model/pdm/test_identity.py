"""Training and inference compute the same logits (specification, facts 5 and 6)."""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig

from speculation.decisions.features import FeatureMap, MaskRule, visible_depth
from speculation.pdm.config import LayerType
from speculation.pdm.module import DraftModule
from speculation.pdm.runtime import DraftRuntime
from speculation.training.examples.draws import build_chain
from speculation.training.examples.layout import PackedRows
from tests.model.pdm.modules import ANCHORS, random_anchors, random_module
from workers.model.attention import Rules
from workers.shared.errors import ConfigError

TOLERANCE = 1e-5
SPLITS = [(4, 4), (5, 3), (2, 2, 2, 2), (3, 1, 4, 0), (1, 5, 1, 1), (1,) * 8]


class DenseRows:
    """Attention over all rows with a mask, as the method is written down."""

    states = None
    positions = torch.empty(0)

    def __init__(self, visible: Tensor) -> None:
        self._visible = visible

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=self._visible, scale=rules.scaling, enable_gqa=True
        )


def dense_logits(module: DraftModule, features: FeatureMap, anchors: Tensor, fill: int, rule: MaskRule) -> Tensor:
    """Logits `[S, V]` after every position: a row for each depth and position, and the dense mask."""
    stages, length = features.stages, len(anchors)
    rows = [(depth, time) for depth in range(stages + 1) for time in range(length)]
    visible = torch.tensor(
        [
            [
                key_time <= time and key_depth == visible_depth(rule, stages, fill, depth, time - key_time)
                for key_depth, key_time in rows
            ]
            for depth, time in rows
        ]
    )
    kinds = [features.kind(depth) for depth, _ in rows]
    times = torch.tensor([time for _, time in rows])
    rotary = module.rotary_tables(length).rows(times)
    hidden = module.tower(module.mixed_features(kinds, anchors[times]), rotary, DenseRows(visible))
    return module.logits(hidden[:length])


def runtime_logits(module: DraftModule, features: FeatureMap, anchors: Tensor, fill: int) -> Tensor:
    """Logits after the last position with `fill` tokens in flight; what a row does not own is poisoned."""
    runtime = DraftRuntime(module, features.split, len(anchors) + 1)
    newest = len(anchors) - 1
    origin = newest - fill + 1
    runtime.extend(anchors[: origin - 1])
    plan = runtime.plan(origin, newest)
    brought = anchors[plan.rows[0].position :].clone()
    for row, at in zip(brought, plan.rows, strict=True):
        row[features.kind(at.depth) + 1 :] = float("nan")
    return runtime.draft(plan, brought)


def packed_logits(
    module: DraftModule, features: FeatureMap, anchors: Tensor, fills: list[int], rule: MaskRule
) -> Tensor:
    """Logits after the last position, a row for each fill, in one packed step beside another example."""
    newest = len(anchors) - 1
    other = [build_chain(features, newest - 1, features.stages)]
    chains = [build_chain(features, newest, fill, rule) for fill in fills]
    packed = PackedRows([other, chains], [0, len(anchors)], "cpu")
    hidden = packed.forward(module, torch.cat([anchors.flip(0), anchors]))
    return module.logits(hidden[1:])


@pytest.mark.parametrize(("layers", "layer_type"), [(1, "target"), (3, "target"), (2, "qwen3")])
@pytest.mark.parametrize("split", SPLITS)
@torch.no_grad()
def test_training_equals_inference(
    target_config: LlamaConfig, layers: int, split: tuple[int, ...], layer_type: LayerType
) -> None:
    module = random_module(target_config, layers, layer_type)
    features = FeatureMap(ANCHORS, split)
    anchors = random_anchors(module, 13)
    fills = list(range(1, features.stages + 1))
    packed = packed_logits(module, features, anchors, fills, MaskRule.CORRECTED)
    for fill, trained in zip(fills, packed, strict=True):
        drafted = runtime_logits(module, features, anchors, fill)
        dense = dense_logits(module, features, anchors, fill, MaskRule.CORRECTED)[-1]
        assert (trained - drafted).abs().max() <= TOLERANCE
        assert (dense - drafted).abs().max() <= TOLERANCE


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("split", SPLITS)
@torch.no_grad()
def test_training_equals_inference_in_frames_of_several_tokens(
    target_config: LlamaConfig, split: tuple[int, ...], width: int
) -> None:
    """All drafts of a frame, from one chain; what a row does not own is poisoned at inference."""
    module = random_module(target_config, 2)
    features = FeatureMap(ANCHORS, split)
    anchors = random_anchors(module, 20)
    last = len(anchors) - 1
    for since in range(1, last):
        origin = last - since + 1
        drafts = min(since, since % width + 1)
        chain = build_chain(features, last, since, width=width, drafts=drafts)
        packed = PackedRows([[chain]], [0], "cpu")
        trained = module.logits(packed.forward(module, anchors))
        assert packed.newest.tolist() == list(range(last, last - drafts, -1))
        runtime = DraftRuntime(module, split, len(anchors) + 1, width)
        runtime.extend(anchors[: origin - 1])
        for newest in range(last - drafts + 1, last + 1):
            plan = runtime.plan(origin, newest)
            brought = anchors[plan.rows[0].position : newest + 1].clone()
            for row, at in zip(brought, plan.rows, strict=True):
                row[features.kind(at.depth) + 1 :] = float("nan")
            drafted = runtime.draft(plan, brought)
            assert (trained[last - newest] - drafted).abs().max() <= TOLERANCE


@pytest.mark.parametrize("layers", [1, 2, 3])
@torch.no_grad()
def test_the_authors_rule_differs_in_partly_filled_pipelines(target_config: LlamaConfig, layers: int) -> None:
    module = random_module(target_config, layers)
    features = FeatureMap(ANCHORS, (2, 2, 2, 2))
    anchors = random_anchors(module, 13)
    packed = packed_logits(module, features, anchors, [1, 2, 3, 4], MaskRule.AUTHORS)
    for fill, trained in zip([1, 2, 3, 4], packed, strict=True):
        dense = dense_logits(module, features, anchors, fill, MaskRule.AUTHORS)[-1]
        assert (dense - trained).abs().max() <= TOLERANCE
        difference = (trained - runtime_logits(module, features, anchors, fill)).abs().max()
        assert (difference > 1e-3) == (layers >= 2 and fill in (2, 3))


@torch.no_grad()
def test_prompt_chunks_equal_one_pass(target_config: LlamaConfig) -> None:
    module = random_module(target_config)
    anchors = random_anchors(module, 20)
    logits = []
    for chunks in ([19], [1, 7, 11], [1] * 19):
        runtime = DraftRuntime(module, (4, 4), 20)
        for chunk in torch.split(anchors[:19], chunks):
            runtime.extend(chunk)
        logits.append(runtime.draft(runtime.plan(19, 19), anchors[19:]))
    assert (logits[0] - logits[1]).abs().max() <= TOLERANCE
    assert (logits[0] - logits[2]).abs().max() <= TOLERANCE


@torch.no_grad()
def test_persistent_rows_equal_a_fresh_start_after_any_rejections(target_config: LlamaConfig) -> None:
    """One long run with rejections against a new runtime for every draft: nothing of a dead epoch is left."""
    module = random_module(target_config, 3)
    split, stages, prompt = (3, 1, 4, 0), 4, 6
    anchors = random_anchors(module, 40)
    runtime = DraftRuntime(module, split, 41)
    runtime.extend(anchors[:prompt])
    origin, newest = prompt, prompt
    rejected_at = {9, 10, 17}
    for _ in range(34):
        plan = runtime.plan(origin, newest)
        logits = runtime.draft(plan, anchors[plan.rows[0].position : newest + 1])
        fresh = DraftRuntime(module, split, 41)
        fresh.extend(anchors[:origin])
        again = fresh.draft(fresh.plan(origin, newest), anchors[origin : newest + 1])
        assert len(plan.rows) <= stages + 1
        assert (logits - again).abs().max() <= TOLERANCE
        checked = newest - stages + 2
        if newest - origin + 1 >= stages and checked in rejected_at:
            rejected_at.remove(checked)
            anchors = torch.cat([anchors[:checked], random_anchors(module, 40)[checked:]])
            origin = newest = checked
        else:
            newest += 1
    assert not rejected_at


@torch.no_grad()
@pytest.mark.parametrize("width", [2, 3, 8])
def test_drafts_of_a_frame_compute_the_newest_row_alone_and_are_those_of_a_fresh_start(
    target_config: LlamaConfig, width: int
) -> None:
    module = random_module(target_config, 3)
    split, prompt = (3, 5), 6
    anchors = random_anchors(module, 40)
    runtime = DraftRuntime(module, split, 41, width)
    runtime.extend(anchors[:prompt])
    for newest in range(prompt, 40):
        plan = runtime.plan(prompt, newest)
        brought = anchors[plan.rows[0].position : newest + 1].clone()
        if (newest + 1 - prompt) % width:
            brought[:-1] = float("nan")  # never read again within a frame
        for row, at in zip(brought, plan.rows, strict=True):
            row[runtime.features.kind(at.depth) + 1 :] = float("nan")
        logits = runtime.draft(plan, brought)
        fresh = DraftRuntime(module, split, 41, width)
        fresh.extend(anchors[:prompt])
        again = fresh.draft(fresh.plan(prompt, newest), anchors[prompt : newest + 1])
        assert (logits - again).abs().max() <= TOLERANCE


@torch.no_grad()
def test_sessions_in_turn_draft_as_each_alone(target_config: LlamaConfig) -> None:
    """To the last bit, whatever turns they take, and in memory that was there before the first draft."""
    module = random_module(target_config)
    texts = [random_anchors(module, tokens) for tokens in (12, 17, 15)]
    alone = [list(_drafts(module, anchors)) for anchors in texts]
    sessions = [_drafts(module, anchors) for anchors in texts]
    together: list[list[Tensor]] = [[] for _ in texts]
    turns = random.Random(0)
    while open_ones := [at for at, drafts in enumerate(together) if len(drafts) < len(alone[at])]:
        at = turns.choice(open_ones)
        together[at].append(next(sessions[at]))
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def _drafts(module: DraftModule, anchors: Tensor) -> Iterator[Tensor]:
    """Logits of the drafts of one sequence whose prompt has five tokens, with a rejection on the way."""
    runtime = DraftRuntime(module, (2, 2, 2, 2), len(anchors) + 1)
    places = [layer[0].data_ptr() for layer in runtime._cache.layers(0).values()]
    runtime.extend(anchors[:5])
    for newest in range(5, len(anchors)):
        plan = runtime.plan(5 if newest < 9 else 9, newest)
        yield runtime.draft(plan, anchors[plan.rows[0].position : newest + 1])
    assert places == [layer[0].data_ptr() for layer in runtime._cache.layers(0).values()]


def test_a_split_of_another_target_is_refused(target_config: LlamaConfig) -> None:
    with pytest.raises(ConfigError, match="target has 8 layers"):
        DraftRuntime(random_module(target_config), (4, 5), 8)


def test_a_sequence_beyond_the_capacity_is_refused(target_config: LlamaConfig) -> None:
    module = random_module(target_config)
    runtime = DraftRuntime(module, (4, 4), 8)
    with pytest.raises(ValueError, match="position 8 is beyond its capacity of 8"):
        runtime.extend(random_anchors(module, 9))

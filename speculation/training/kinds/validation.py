"""Agreement with the target on held-out answers, for each split and fill."""

from collections.abc import Sequence

import torch

from speculation.decisions.features import FeatureMap
from speculation.pdm.module import DraftModule
from speculation.training.examples.data import Example
from speculation.training.examples.draws import Chain, build_chain
from speculation.training.examples.layout import PackedRows
from speculation.training.loss import DraftLoss, Score
from speculation.training.teacher import Teacher


def validate(
    module: DraftModule,
    loss: DraftLoss,
    teacher: Teacher,
    examples: Sequence[Example],
    indices: Sequence[int],
    splits: Sequence[FeatureMap],
    *,
    widths: Sequence[int],
    autocast: bool,
) -> dict[str, dict[str, float]]:
    """Mean scores by "n<stages> k<fill> T<temperature>", for a full pipeline and for one token in flight.

    Of frames of `widths` tokens, but for one, by "n<stages> m<width> T<temperature>", for a full pipeline. Only
    positions count at which that many tokens can be in flight; of an exit head, all, and its fills are alike.
    `indices` are the examples to use.
    """
    device = module.lm_head.weight.device
    totals: dict[str, Score] = {}
    for index in indices:
        example = examples[index]
        drafts: dict[int, list[tuple[str, Chain]]] = {}  # by the feature type of finished rows, which are shared
        for features in splits:
            for fill in sorted({1, features.last}):
                name = f"n{features.stages} k{fill} T{example.temperature:g}"
                drafts.setdefault(features.final_kind, []).extend(
                    (name, build_chain(features, position, fill)) for position in example.newest[fill - 1 :]
                )
            for width in widths:
                full = features.last * width
                if width > 1:
                    drafts.setdefault(features.final_kind, []).extend(
                        (
                            f"n{features.stages} m{width} T{example.temperature:g}",
                            build_chain(features, last, full + width - 1, width=width, drafts=width),
                        )
                        for last in example.newest[full + width - 2 :: width]
                    )
        kinds = [kind for kind in drafts.values() if kind]
        if not kinds:
            continue
        targets = teacher.targets([index])
        packed = PackedRows([[chain for _, chain in kind] for kind in kinds], [0] * len(kinds), device)
        names = [name for kind in kinds for name, chain in kind for _ in range(chain.drafts)]
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            hidden = packed.forward(module, targets.anchors)
            for name in dict.fromkeys(names):
                rows = torch.tensor([row for row, other in enumerate(names) if other == name], device=device)
                score = loss.score(module, hidden[rows], targets, packed.newest[rows])
                totals.setdefault(name, Score()).add(score)
    return {name: score.means() for name, score in sorted(totals.items())}

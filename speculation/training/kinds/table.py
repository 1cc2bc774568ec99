"""The kinds of drafters that can be trained, by the name that `--kind` takes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from speculation.decisions.features import RowRule
from speculation.training.examples.data import Example
from speculation.training.kinds.base import Learner
from speculation.training.kinds.heads import HeadLearner
from speculation.training.kinds.module import ModuleLearner
from speculation.training.settings import KindName, TrainingSettings

KINDS: Mapping[KindName, Callable[[TrainingSettings, Path, Sequence[Example], torch.device], Learner]] = (
    MappingProxyType(
        {
            "pdm": partial(ModuleLearner, rows=RowRule.IN_FLIGHT),
            "exit": partial(ModuleLearner, rows=RowRule.EXIT),
            "eagle3": partial(HeadLearner, parallel=False),
            "peagle": partial(HeadLearner, parallel=True),
        }
    )
)

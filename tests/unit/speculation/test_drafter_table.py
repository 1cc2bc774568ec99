"""The table of drafters: every row has a loader, and what it says is obeyed before anything is loaded."""

from importlib.util import find_spec
from typing import Any, get_args

import pytest

from workers.decisions.check_config import check_config
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig
from workers.shared.drafters import DRAFTERS, DrafterName
from workers.shared.errors import ConfigError


def test_every_name_has_a_row_and_every_row_a_loader() -> None:
    assert set(DRAFTERS) == set(get_args(DrafterName))
    assert all(find_spec(row.loader.partition(":")[0]) is not None for row in DRAFTERS.values())


def configured(name: DrafterName, drafts: int, **settings: Any) -> EngineConfig:
    row = DRAFTERS[name]
    drafter = DrafterConfig(
        name,
        module="m" if row.needs_module else None,
        draft_model="m" if row.needs_model else None,
        cascade=("m",) if row.needs_cascade else (),
        script="s" if row.needs_script else None,
        num_speculative_tokens=drafts,
    )
    stages = 1 if drafts else 2
    ends = Endpoints("", "", ("",) * stages, ("",) * stages)
    return EngineConfig("/nowhere", (1,) * stages, ends, 64, drafter=drafter, **settings)


@pytest.mark.parametrize("name", DRAFTERS)
def test_branches_are_for_all_drafters_but_those_that_know_one_text_only(name: DrafterName) -> None:
    if name in ("exit", "cascade"):
        with pytest.raises(ConfigError, match=r"use ngram or model or pdm .*or eagle3 or peagle or mtp, or leave"):
            check_config(configured(name, 0, tree_width=2))
    else:
        check_config(configured(name, 0, tree_width=2))


@pytest.mark.parametrize("name", DRAFTERS)
def test_draft_then_verify_takes_the_drafters_that_need_nothing_in_flight(name: DrafterName) -> None:
    row, config = DRAFTERS[name], configured(name, 3)
    if row.works_in_rounds:
        check_config(config)
    else:
        with pytest.raises(ConfigError, match="use ngram or model or cascade or eagle3 or peagle or mtp, or leave"):
            check_config(config)

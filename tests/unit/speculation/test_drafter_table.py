"""The table of drafters: every row can be loaded by its path, and what it says is obeyed."""

from importlib.util import find_spec

import msgspec
import pytest

from speculation.decisions.policy import choose_policy, draft_then_verify, pipelined
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig
from workers.shared.drafters import DRAFTERS
from workers.shared.errors import ConfigError


class Outer(msgspec.Struct):
    drafter: DrafterConfig


def engine(name: str, drafts: int) -> EngineConfig:
    drafter = DrafterConfig(name, num_speculative_tokens=drafts)
    return EngineConfig("/nowhere", (1, 1), Endpoints("", "", (), ()), drafter=drafter)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_row_has_a_loader_and_a_policy(name: str) -> None:
    assert find_spec(DRAFTERS[name].loader.partition(":")[0]) is not None
    assert choose_policy(engine(name, 0)) == pipelined(2)
    if DRAFTERS[name].works_in_rounds:
        assert choose_policy(engine(name, 3)) == draft_then_verify(2, 3)
    else:
        with pytest.raises(ConfigError, match="use ngram or model, or leave"):
            choose_policy(engine(name, 3))


def test_a_name_in_no_row_is_refused_with_the_path_of_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"'gram': expected one of none, .* - at `\$.drafter`"):
        msgspec.json.decode(b'{"drafter": {"name": "gram"}}', type=Outer)

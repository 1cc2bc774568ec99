"""Drafters that need no model."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.drafters.base import Draft, Drafter, Start
from speculation.drafters.build import build_drafters, choices
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling

SAMPLING = Sampling(seed=0)


def build(config: DrafterConfig, vocab_size: int = 10) -> Drafter:
    engine = EngineConfig("/nowhere", (1, 1), Endpoints("", "", (), ()), 64, drafter=config)
    return build_drafters(engine, vocab_size, choices(config))[0]


def look_up(verified: Sequence[int], tokens: Sequence[int], longest: int, shortest: int, most: int) -> list[int]:
    """Oracle: scans the verified text backwards for each suffix of `tokens`, longest first; knows `most` of each."""
    found: dict[int, None] = {}
    for length in range(longest, shortest - 1, -1):
        suffix = list(tokens[-length:])
        if len(suffix) < length:
            continue
        ends = (end for end in range(len(verified) - 1, length - 1, -1) if list(verified[end - length : end]) == suffix)
        found.update(dict.fromkeys(list(dict.fromkeys(verified[end] for end in ends))[:most]))
    return list(found)[:most]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.lists(st.integers(0, 4), max_size=30),
    st.lists(st.integers(0, 4), max_size=5),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_ngram_finds_the_latest_occurrences_of_the_longest_suffix(
    prompt: list[int], output: list[int], drafts: list[int], shortest: int, more: int, ahead: int, most: int
) -> None:
    drafter = NgramDrafter(shortest + more, shortest, most)
    drafter.begin([1, 2, 3], SAMPLING, Start())
    prompt = prompt * 100  # more than is indexed at a time
    drafter.begin(prompt, SAMPLING, Start())
    for _ in range(ahead):
        drafter.advance()
    tokens = list(prompt)
    for token in output:
        tokens.append(token)
        drafter.verified([*tokens, 0, 1], len(tokens))
    expected = look_up(tokens, tokens + drafts, shortest + more, shortest, most)
    draft = drafter.draft(tokens + drafts)
    assert list(draft.candidates if draft is not None else ()) == expected
    if draft is not None and most > 1:
        assert len(draft.chances) == len(expected)
        assert 0 < sum(draft.chances) <= 1


def test_ngram_refuses_lengths_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="shortest"):
        NgramDrafter(2, 3)


def test_a_script_is_replayed_and_wrong_where_it_says_so() -> None:
    drafter = ScriptedDrafter(Script([Recording([9, 9]), Recording([1, 2, 3, 4], frozenset({3}))]), vocab_size=5)
    drafter.begin([1], SAMPLING, Start())
    assert [drafter.draft([0] * position) for position in range(1, 5)] == [Draft((2,)), Draft((3,)), Draft((0,)), None]
    drafter.begin([7], SAMPLING, Start())
    assert drafter.draft([7]) is None


def test_a_script_is_wrong_as_often_as_it_says() -> None:
    drafter = ScriptedDrafter(Script([Recording([0] * 4000, wrong_probability=0.3)]), vocab_size=2)
    drafter.begin([0], SAMPLING, Start())
    wrong = sum(drafter.draft([0] * position) == Draft((1,)) for position in range(1, 4000))
    assert 0.27 < wrong / 3999 < 0.33


def test_choose_reads_the_script(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(msgspec.json.encode(Script([Recording([1, 2])])))
    drafter = build(DrafterConfig("scripted", script=str(path)))
    drafter.begin([1], SAMPLING, Start())
    assert drafter.draft([1]) == Draft((2,))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DrafterConfig("scripted"), "--script"),
        (DrafterConfig("scripted", script="a", scripted_acceptance=0.5), "not both"),
        (DrafterConfig("scripted", script="/nowhere.json"), "/nowhere.json"),
        (DrafterConfig("ngram", ngram_max=1, ngram_min=2), "--ngram-min"),
    ],
)
def test_choose_names_what_is_wrong(config: DrafterConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(config)


def test_a_malformed_script_is_refused_with_the_path_of_the_field(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"recordings": [{"tokens": ["a"]}]}')
    with pytest.raises(ConfigError, match=r"recordings\[0\].tokens"):
        build(DrafterConfig("scripted", script=str(path)))


def test_made_up_drafts_depend_on_position_and_last_token_and_stay_in_the_vocabulary() -> None:
    drafter = build(DrafterConfig("scripted", scripted_acceptance=0.5), 7)
    drafts = [drafter.draft([3] * position) for position in range(1, 200)]
    assert drafts == [drafter.draft([*[4] * (position - 1), 3]) for position in range(1, 200)]
    assert drafts != [drafter.draft([4] * position) for position in range(1, 200)]
    assert {draft.token for draft in drafts if isinstance(draft, Draft)} == set(range(7))

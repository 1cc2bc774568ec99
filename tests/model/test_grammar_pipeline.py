"""Under a grammar, too, tokens depend neither on the split nor on the drafter; forced tokens fill the pipeline."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from speculation.drafters.base import Drafter
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.none import NoDrafter
from tests.harness import LocalEngine, Result, local_engine
from tests.model.identity import drafters
from workers.shared.grammar import Grammars
from workers.shared.messages import Sampling
from workers.shared.model_files.end_tokens import read_end_tokens

PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]
SCHEMA = {
    "type": "object",
    "properties": {
        "temperature_celsius": {"type": "integer", "minimum": 0, "maximum": 999},
        "weather_description": {"enum": ["raining in the evening", "explained by the river"]},
        "is_there_a_bridge": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["temperature_celsius", "weather_description", "is_there_a_bridge", "note"],
    "additionalProperties": False,
}
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides=COMPACT)  # type: ignore[arg-type]
NEW = 200
DRAFTED = {2: 0.0, 5: 1.0}  # the temperature at which drafters are compared, by number of stages; splits are at both


@pytest.fixture(scope="module", params=[(4, 4), (2, 2, 2, 1, 1)], ids=str)
def engine(request: pytest.FixtureRequest, shallow_model: Path) -> Iterator[LocalEngine]:
    with local_engine(shallow_model, request.param, max_model_len=512) as running:
        yield running


@pytest.fixture(scope="module")
def grammars(shallow_model: Path) -> Grammars:
    return Grammars(shallow_model)


@pytest.fixture(scope="module")
def answers() -> dict[float, list[int]]:
    """Output by temperature, whatever the split that was run first."""
    return {}


def ask(engine: LocalEngine, drafter: Drafter, model: Path, temperature: float, grammar: str = GRAMMAR) -> Result:
    engine.drafting.use(drafter)
    sampling = Sampling(seed=3, temperature=temperature, repetition_penalty=1.1, grammar=grammar)
    return engine.client.generate(PROMPT, NEW, sampling, sorted(read_end_tokens(model)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_answer_matches_and_does_not_depend_on_split_or_drafter(
    engine: LocalEngine, shallow_model: Path, grammars: Grammars, answers: dict[float, list[int]], temperature: float
) -> None:
    plain = ask(engine, NoDrafter(), shallow_model, temperature)
    assert plain.error is None
    assert plain.finish == "stop"
    text = Tokenizer.from_file(str(shallow_model / "tokenizer.json")).decode(plain.tokens)
    answer = json.loads(text)
    assert list(answer) == SCHEMA["required"]
    assert answers.setdefault(temperature, plain.tokens) == plain.tokens
    if temperature != DRAFTED[len(engine.split)]:
        return
    for name, drafter in drafters(PROMPT + plain.tokens, engine.vocab_size).items():
        for candidate in (drafter, ForcedDrafter(drafter, grammars)):
            result = ask(engine, candidate, shallow_model, temperature)
            assert (result.tokens, result.finish) == (plain.tokens, "stop"), name


def test_forced_drafts_are_always_accepted(engine: LocalEngine, shallow_model: Path, grammars: Grammars) -> None:
    counts = ask(engine, ForcedDrafter(NoDrafter(), grammars), shallow_model, 1.0).counts
    assert counts is not None
    assert counts.rejected == 0
    plain = ask(engine, NoDrafter(), shallow_model, 1.0).counts
    assert plain is not None
    assert counts.accepted > 20
    assert counts.cycles < plain.cycles / 1.5


def test_a_grammar_that_fails_in_the_stage_ends_the_request_alone(engine: LocalEngine, shallow_model: Path) -> None:
    failed = ask(engine, NoDrafter(), shallow_model, 1.0, grammar="start: nothing")
    assert failed.error is not None
    assert "grammar" in failed.error
    assert len(engine.client.generate(PROMPT, 5).tokens) == 5

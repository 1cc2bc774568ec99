"""Tokens per cycle on a JSON schema, with and without forced drafts: `python -m tests.measure.schema_cycles`.

The built-in random model fills in a schema; cycles are counted, not timed, so the machine does not matter.
"""

from speculation.drafters.base import Drafter
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from tests.harness import LocalEngine, local_engine
from tests.model.test_grammar_pipeline import GRAMMAR, NEW, PROMPT
from workers.prepare.prepare import TINY, prepare
from workers.shared.grammar import Grammars
from workers.shared.messages import Sampling
from workers.shared.model_files.end_tokens import read_end_tokens

_SPLITS = [(8, 8), (4, 4, 4, 4), (2,) * 8]
_SEEDS = 10


def per_cycle(engine: LocalEngine, drafter: Drafter, stops: list[int]) -> float:
    """Tokens per cycle over several seeds, the token that prefill gives not counted."""
    engine.drafting.use(drafter)
    tokens = cycles = 0
    for seed in range(_SEEDS):
        result = engine.client.generate(PROMPT, NEW, Sampling(seed=seed, grammar=GRAMMAR), stops)
        assert result.counts is not None
        tokens += len(result.tokens) - 1
        cycles += result.counts.cycles
    return tokens / cycles


def main() -> None:
    """Prints the table."""
    model = prepare(TINY)
    grammars, stops = Grammars(model), sorted(read_end_tokens(model))
    print("| stages | none | ngram | forced | forced, then ngram |\n| --- | --- | --- | --- | --- |")
    for split in _SPLITS:
        with local_engine(model, split, max_model_len=512) as engine:
            drafters: list[Drafter] = [NoDrafter(), NgramDrafter(4, 1)]
            drafters += [ForcedDrafter(drafter, grammars) for drafter in (NoDrafter(), NgramDrafter(4, 1))]
            row = [f"{per_cycle(engine, drafter, stops):.2f}" for drafter in drafters]
            print(f"| {len(split)} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

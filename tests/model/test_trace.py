"""The live trace of a real pipeline: complete while somebody looks, nothing once nobody does, and no token changes."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from tests.harness import Client, LocalEngine, Result, local_engine
from tests.processes import wait_until
from workers.shared.live.events import Began, Ended, Entered, Left, Passed

SPLIT = (8, 4, 4)
PROMPTS = [list(range(40, 120)), [50, 51, 52]]
NEW = 24


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[LocalEngine]:
    with local_engine(tiny_model, SPLIT, prefill_chunk=32, max_num_seqs=2) as running:
        yield running


def served(client: Client) -> list[Result]:
    names = [client.send(prompt, NEW) for prompt in PROMPTS]
    results = client.results(dict.fromkeys(names))
    return [results[name] for name in names]


def test_a_trace_tells_of_every_frame_and_changes_no_token(engine: LocalEngine) -> None:
    client = engine.client
    plain = served(client)
    assert client.trace == []
    script = Script(
        [
            Recording([*prompt, *result.tokens], wrong_probability=0.4)
            for prompt, result in zip(PROMPTS, plain, strict=True)
        ]
    )
    engine.drafting.use(lambda _: ScriptedDrafter(script, engine.vocab_size))
    client.watch(snapshot=True)
    traced = served(client)
    assert [result.tokens for result in traced] == [result.tokens for result in plain]

    def ended() -> int:
        client.status()  # and what comes before it
        return sum(isinstance(event, Ended) for event in client.trace)

    wait_until(lambda: ended() == len(PROMPTS), 60)
    trace = client.trace
    slots = {event.slot: traced[number] for number, event in enumerate(e for e in trace if isinstance(e, Began))}
    assert len(slots) == len(PROMPTS)
    entered = {event.frame: event for event in trace if isinstance(event, Entered)}
    left = [event for event in trace if isinstance(event, Left)]
    passed: defaultdict[int, list[Passed]] = defaultdict(list)
    for event in trace:
        if isinstance(event, Passed):
            passed[event.frame].append(event)
    for slot, result in slots.items():
        mine, counts = [event for event in left if event.slot == slot], result.counts
        assert counts is not None
        assert [token for event in mine for token in event.tokens] == result.tokens
        assert sum(event.right for event in mine) == counts.accepted > 0
        assert sum(event.wrong for event in mine) == counts.rejected > 0
        assert sum(event.kind == "prompt" for event in entered.values() if event.slot == slot) > 0
        (end,) = [event for event in trace if isinstance(event, Ended) and event.slot == slot]
        assert (end.drafted, end.accepted, end.cycles) == (counts.drafted, counts.accepted, counts.cycles)
    for event in left:
        stages = sorted(passed[event.frame], key=lambda one: one.stage)  # each has a channel of its own
        assert [one.stage for one in stages] == list(range(len(SPLIT))), "every live frame went through all stages"
        assert all(one.computed for one in stages)
    assert any(not one.computed for stages in passed.values() for one in stages), "dead frames pass uncomputed"


def test_nothing_is_traced_once_nobody_looks(engine: LocalEngine) -> None:
    client = engine.client
    client.watch()
    wait_until(lambda: traces(client) > 0, 60)
    wait_until(lambda: all(traces(client) == 0 for _ in range(3)), 60)


def traces(client: Client) -> int:
    """Events that come while one more request is served: its own, or, since they come in batches, older ones."""
    client.trace.clear()
    client.generate([60, 61], 4)
    client.status()
    client.status()
    return len(client.trace)

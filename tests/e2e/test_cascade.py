"""`echelon serve tiny --cascade ...`: models that are killed or stopped and come back; requests do not notice."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculation.drafters.none import NoDrafter
from tests.e2e.serving import Serving, serving
from tests.e2e.test_serve import PROMPT, tokens
from tests.harness import local_engine
from tests.measure.pruned_model import write_pruned_model
from tests.processes import children, command, wait_until
from workers.shared.messages import Sampling

pytestmark = pytest.mark.timeout(900)

NEW = 80
SMALL, MIDDLE = 0, 1


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("cascade")
    write_pruned_model(tiny_model, folder / "small", (14, 15))
    write_pruned_model(tiny_model, folder / "middle", (15,))
    options = ("--stages", "2", "--transport", "inprocess", "--tokens-per-frame", "4", "--always-draft")
    with serving(folder, "tiny", "--cascade", f"{folder / 'small'},{folder / 'middle'}", *options) as running:
        yield running


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> list[list[int]]:
    """Greedy and seeded tokens of an engine without drafts."""
    samplings = (Sampling(seed=0, temperature=0), Sampling(seed=7, temperature=1))
    with local_engine(tiny_model, (16,)) as engine:
        engine.drafting.use(NoDrafter())
        return [engine.client.generate(PROMPT, NEW, sampling).tokens for sampling in samplings]


def process(server: Serving, model: int) -> int | None:
    """Pid of a model's process, if it runs."""
    supervisor = server.process("speculation.cascade")
    words = f"--model {model}"
    return next((pid for pid in children(supervisor) if words in " ".join(command(pid))), None)


def assert_used(server: Serving, plain: list[list[int]]) -> None:
    """Sooner or later the models draft."""
    before = server.metric("echelon:speculation_accepted_total")

    def used() -> bool:
        assert tokens(server, NEW) == plain[0]
        return server.metric("echelon:speculation_accepted_total") > before

    wait_until(used, 120)


def test_the_tokens_are_those_of_plain_decoding_and_every_model_is_reported(
    server: Serving, plain: list[list[int]]
) -> None:
    assert_used(server, plain)
    assert tokens(server, NEW, temperature=1, seed=7) == plain[1]
    for model, name in enumerate(("small", "middle")):
        series = f'echelon:cascade_written_total{{model="{model}",name="{name}"}}'
        wait_until(lambda series=series: server.metric(series) > 0, 60)  # type: ignore[misc]


@pytest.mark.parametrize("model", [SMALL, MIDDLE], ids=["small", "middle"])
def test_a_killed_model_is_done_without_and_comes_back(server: Serving, plain: list[list[int]], model: int) -> None:
    victim = process(server, model)
    assert victim is not None
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 250, "temperature": 0}
    body["extra_body"] = {"ignore_eos": True}
    expected = server.client().completions.create(**body).choices[0].text  # type: ignore[call-overload]
    stream = iter(server.client().completions.create(**body, stream=True))  # type: ignore[call-overload]
    received = next(stream).choices[0].text
    os.kill(victim, signal.SIGKILL)
    assert received + "".join(chunk.choices[0].text for chunk in stream) == expected
    assert server.health() == 200
    wait_until(lambda: process(server, model) not in (None, victim), 60)
    assert_used(server, plain)
    assert server.health() == 200, "the engine was never restarted"


@pytest.mark.parametrize("model", [SMALL, MIDDLE], ids=["small", "middle"])
def test_a_stopped_model_is_done_without_and_goes_on(server: Serving, plain: list[list[int]], model: int) -> None:
    victim = process(server, model)
    assert victim is not None
    os.kill(victim, signal.SIGSTOP)
    try:
        for _ in range(3):
            assert tokens(server, NEW) == plain[0]
    finally:
        os.kill(victim, signal.SIGCONT)
    assert_used(server, plain)
    assert process(server, model) == victim

"""Whatever is lost and when, a sequence's messages are those of an engine that never failed."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from server.engine.recovery import Recovery
from workers.shared.messages import Failed, Generate, Sampling, Tokens

LENGTH = 5
ATTEMPTS = 3


def script(identifier: str) -> list[int]:
    """What an engine answers."""
    return [10 * int(identifier) + place for place in range(LENGTH)]


def generate(number: int) -> Generate:
    return Generate(str(number), [1], LENGTH, Sampling(seed=0))


@given(st.lists(st.sampled_from(["open", "token", "lose", "back", "close"]), max_size=60), st.randoms())
def test_the_messages_of_a_sequence_do_not_depend_on_what_was_lost(steps: list[str], rng: object) -> None:
    recovery = Recovery(ATTEMPTS, seconds=10.0, interval=1.0)
    numbers = itertools.count()
    engine: dict[str, int] | None = {}  # what it has, and how many tokens of it have been given; None: lost
    seen: dict[str, list[int]] = {}  # by the client of each sequence that is open for it
    losses: dict[str, int] = {}
    for step in steps:
        if step == "open" and engine is not None:
            request = generate(next(numbers))
            recovery.opened(request)
            engine[request.id], seen[request.id], losses[request.id] = 0, [], 0
        elif step == "token" and engine:
            name = rng.choice(sorted(engine))  # type: ignore[attr-defined]
            token, last = script(name)[engine[name]], engine[name] == LENGTH - 1
            engine[name] += 1
            assert recovery.received(Tokens(name, [token], finish="length" if last else None)) == (name in seen)
            if name in seen:
                seen[name].append(token)
                assert seen[name] == script(name)[: len(seen[name])]
            if last:
                del engine[name]
                seen.pop(name, None)
        elif step == "lose" and engine is not None:
            engine = None
            for name in seen:
                losses[name] += 1
            given_up = recovery.lost()
            assert given_up == [name for name in seen if losses[name] > ATTEMPTS]
            for name in given_up:
                del seen[name]
        elif step == "back" and engine is None:
            again = recovery.back()
            assert [request.id for request in again] == list(seen)
            engine = {request.id: len(request.generated) for request in again}
            assert all(list(request.generated) == seen[request.id] for request in again)
        elif step == "close" and seen:
            name = rng.choice(sorted(seen))  # type: ignore[attr-defined]
            assert recovery.closed(name)
            assert not recovery.closed(name)
            del seen[name]
        assert list(recovery) == list(seen)


def test_a_failed_sequence_is_not_sent_again() -> None:
    recovery = Recovery(ATTEMPTS, seconds=10.0, interval=1.0)
    recovery.opened(generate(1))
    assert recovery.received(Failed("1", "no"))
    assert recovery.lost() == []
    assert recovery.back() == []


def test_an_absence_is_counted_in_time_that_this_process_ran() -> None:
    recovery = Recovery(ATTEMPTS, seconds=10.0, interval=1.0)
    recovery.opened(generate(1))
    assert recovery.look(0.0, healthy=True) == []
    assert recovery.look(5.0, healthy=False) == []
    assert recovery.look(3600.0, healthy=False) == []  # it was suspended
    now = 3600.0
    while not (given_up := recovery.look(now, healthy=False)):
        now += 1.0
    assert given_up == ["1"]
    assert 3605.0 <= now <= 3611.0


def test_without_attempts_or_time_everything_ends_at_once() -> None:
    recovery = Recovery(0, seconds=0.0, interval=1.0)
    recovery.opened(generate(1))
    assert recovery.lost() == ["1"]
    recovery.opened(generate(2))
    assert recovery.look(0.0, healthy=False) == ["2"]


def test_scores_of_the_prompt_are_not_asked_for_again() -> None:
    recovery = Recovery(ATTEMPTS, seconds=10.0, interval=1.0)
    for number in (1, 2):
        recovery.opened(Generate(str(number), [1], LENGTH, Sampling(seed=0, prompt_logprobs=1)))
    recovery.received(Tokens("2", [20]))
    recovery.lost()
    assert [request.sampling.prompt_logprobs for request in recovery.back()] == [1, None]

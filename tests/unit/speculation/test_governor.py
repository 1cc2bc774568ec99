"""Drafts are stopped while they lose, and only then."""

from speculation.decisions.governor import Governor


def run(governor: Governor, tokens: int, *, drafted: float, plain: float, cycles: float, stages: int = 2) -> list[bool]:
    """Feeds tokens that take `drafted` seconds and `cycles` cycles with drafts, `plain` and n without."""
    now, counted, spent = 0.0, 0, 0.0
    drafting = []
    governor.begin()
    governor.token(now, 0)
    for _ in range(tokens):
        on = governor.drafting
        drafting.append(on)
        now += drafted if on else plain
        spent += cycles if on else stages
        step = int(spent) - counted
        counted += step
        governor.token(now, step)
    return drafting


def test_a_clear_win_is_never_probed() -> None:
    assert all(run(Governor(4), 5000, drafted=0.1, plain=0.3, cycles=1.5, stages=4))


def test_a_narrow_win_is_probed_seldom_and_kept() -> None:
    drafting = run(Governor(2), 5000, drafted=0.10, plain=0.12, cycles=1.6)
    assert 0.9 < sum(drafting) / len(drafting) < 1


def test_a_loser_is_quiet_most_of_the_time_and_gets_another_chance() -> None:
    governor = Governor(2)
    drafting = run(governor, 5000, drafted=0.13, plain=0.10, cycles=1.9)
    assert 0.05 < sum(drafting) / len(drafting) < 0.5
    assert any(drafting[1000:])


def test_it_says_when_it_is_quiet() -> None:
    governor = Governor(2)
    run(governor, 256 + 16, drafted=0.2, plain=0.1, cycles=2)
    assert governor.quiet
    assert not governor.drafting
    run(governor, 512, drafted=0.2, plain=0.1, cycles=2)
    assert governor.drafting


def test_waiting_between_requests_is_not_held_against_anybody() -> None:
    governor = Governor(2)
    now = 0.0
    for _ in range(40):
        governor.begin()
        now += 100.0
        for _ in range(20):
            governor.token(now, 2)
            now += 0.1 if governor.drafting else 0.12
    assert not governor.quiet

"""The trace buffer against one that forgets nothing, and clocks that differ."""

from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.trace import INTERVAL, LEASE, ClockOffset, TraceBuffer

CAPACITY = 5


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, float]]:
    """What happens, and when: a client looks, an event, or a turn of the loop."""
    now, history = 0.0, []
    for what, pause in draw(
        st.lists(st.tuples(st.sampled_from(["a", "b", "event", "event", "turn"]), st.floats(0, 2 * LEASE)), max_size=60)
    ):
        now += pause
        history.append((what, now))
    return history


@given(histories())
def test_what_is_sent_and_what_is_lost_is_all_there_was_while_somebody_looked(history: list[tuple[str, float]]) -> None:
    buffer: TraceBuffer[int] = TraceBuffer(CAPACITY)
    until: dict[bytes, float] = {}
    kept: list[int] = []  # since the last batch, without a bound
    last, number = float("-inf"), 0
    for what, now in history:
        if what == "turn":
            batch = buffer.take(now)
            if kept and now >= last + INTERVAL:
                assert batch == (kept[-CAPACITY:], max(0, len(kept) - CAPACITY))
                kept, last = [], now
            else:
                assert batch is None
            buffer.expire(now)
            until = {client: end for client, end in until.items() if now < end}
            kept = kept if until else []
        elif what == "event":
            if buffer.on:
                number += 1
                kept.append(number)
                buffer.add(number)
        else:
            buffer.watch(what.encode(), now)
            until[what.encode()] = now + LEASE
        assert buffer.on == bool(until)
        assert set(buffer.watchers) == set(until)


def test_nobody_who_comes_later_gets_what_was_meant_for_others() -> None:
    buffer: TraceBuffer[int] = TraceBuffer()
    buffer.watch(b"first", 0.0)
    buffer.add(1)
    buffer.expire(LEASE)
    buffer.watch(b"second", LEASE)
    assert buffer.take(LEASE) is None


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**7)), min_size=1))
def test_a_foreign_clock_is_off_by_the_fastest_message_at_most(ahead: int, sent: list[tuple[int, int]]) -> None:
    clock = ClockOffset()
    delays: list[int] = []
    for moment, delay in sent:
        delays.append(delay)
        found = clock.here(moment + ahead, moment + delay)
        assert found - moment == min(delays)

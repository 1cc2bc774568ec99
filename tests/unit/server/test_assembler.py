"""What a choice shows does not depend on how the engine divides its tokens into messages."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from server.output.assembler import Assembler, Delta
from server.output.parts import PlainReader
from server.output.reasoning_parser import ReasoningReader
from tests.small_model import EOS, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()


def decode(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(ids))


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def run(assembler: Assembler, tokens: list[int], sizes: list[int], finish: str) -> list[Delta]:
    deltas = []
    start = 0
    for size in [*sizes, len(tokens)]:
        part = tokens[start : start + size]
        start += size
        deltas.append(assembler.push(part, [], finish if start >= len(tokens) else None))
        if start >= len(tokens):
            break
    return deltas


def whole(deltas: list[Delta]) -> tuple[str, list[int], list[int], str | None]:
    tokens = [item for delta in deltas for item in delta.tokens]
    finishes = [delta.finish for delta in deltas if delta.finish is not None]
    assert len(finishes) == 1
    return (
        "".join(delta.text for delta in deltas),
        [item.token for item in tokens],
        [item.offset for item in tokens],
        finishes[0],
    )


words = st.text("abc 🙂中", max_size=30)


@given(
    words,
    st.lists(st.text("abc 🙂", min_size=1, max_size=3), max_size=3),
    st.integers(0, 5),
    st.booleans(),
    st.lists(st.integers(1, 5), max_size=20),
)
def test_the_division_into_messages_does_not_matter(
    text: str, stops: list[str], min_tokens: int, ends: bool, sizes: list[int]
) -> None:
    tokens, finish = [*encode(text), *([EOS] if ends else encode("a"))], "stop" if ends else "length"
    at_once = Assembler(0, decode, stops, min_tokens)
    divided = Assembler(0, decode, stops, min_tokens)
    one_by_one = Assembler(0, decode, stops, min_tokens)
    expected = whole(run(at_once, tokens, [len(tokens)], finish))
    assert whole(run(divided, tokens, sizes, finish)) == expected
    assert whole(run(one_by_one, tokens, [1] * len(tokens), finish)) == expected
    assert divided.count == at_once.count == len(expected[1])


def test_a_stop_string_in_the_last_message_beats_its_finish_reason() -> None:
    assembler = Assembler(0, decode, ["quick"])
    tokens = encode("the quick brown")
    delta = assembler.push(tokens, [], "length")
    assert (delta.text, delta.finish) == ("the ", "stop")
    assert assembler.stopped_early
    assert assembler.count < len(tokens)


def test_nothing_follows_a_stop_string() -> None:
    assembler = Assembler(0, decode, ["quick"])
    assembler.push(encode("the quick"), [], None)
    count = assembler.count
    assert assembler.push(encode(" brown"), [], "length") == Delta(0, [], [], None)
    assert assembler.count == count


def test_the_stop_token_counts_and_is_not_shown() -> None:
    assembler = Assembler(0, decode)
    stop = encode("x")
    delta = assembler.push([*encode("the"), *stop], [], "stop")
    assert (delta.text, delta.tokens[-1].token, delta.finish) == ("the", stop[0], "stop")
    assert not assembler.stopped_early


def test_held_back_text_comes_with_the_end() -> None:
    assembler = Assembler(0, decode, ["dog!"])
    first = assembler.push(encode("lazy dog"), [], None)
    last = assembler.push([EOS], [], "stop")
    assert (first.text, last.text) == ("lazy ", "dog")


def test_stop_strings_are_not_looked_for_before_min_tokens() -> None:
    tokens = encode("aaaa")
    assembler = Assembler(0, decode, ["a"], min_tokens=2)
    delta = assembler.push(tokens, [], "length")
    assert (delta.text, assembler.count) == (decode(tokens[:2]), 3)


@given(st.text("ab <>/think\n🙂", max_size=20), words, st.booleans(), st.lists(st.integers(1, 5), max_size=20))
def test_reasoning_tokens_are_counted_whatever_the_division(
    thought: str, answer: str, closed: bool, sizes: list[int]
) -> None:
    before = encode(thought)
    tokens = [*before, *encode("</think>" + answer if closed else ""), EOS]
    counts = set()
    for division in (sizes, [len(tokens)], [1] * len(tokens)):
        assembler = Assembler(0, decode, reader=ReasoningReader(PlainReader(), inside=True))
        run(assembler, tokens, division, "stop")
        counts.add(assembler.reasoning)
    (count,) = counts
    if "</think>" not in thought and not thought.strip():
        assert count == 0
    elif "</think>" not in thought:
        assert 0 < count <= len(tokens) - (len(encode(answer)) if closed else 0)


def test_reasoning_tokens_are_those_of_the_thought() -> None:
    for thought in ("ab", "the quick brown fox"):
        assembler = Assembler(0, decode, reader=ReasoningReader(PlainReader(), inside=True))
        assembler.push([*encode(thought), *encode("</think>"), *encode("the dog")], [], "length")
        assert assembler.reasoning == len(encode(thought))

"""Incremental text equals the text of the whole, with real decoders."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from server.output.detokenizer import HALF, Detokenizer
from tests.small_model import VOCAB_SIZE, byte_level_tokenizer

Decode = Callable[[Sequence[int]], str]

BYTE_LEVEL = byte_level_tokenizer()
PIECES = ["▁Hello", "▁world", "a", "▁", "é", *(f"<0x{byte:02X}>" for byte in range(256))]


def byte_fallback_tokenizer() -> Tokenizer:
    """A decoder as SentencePiece models have it: byte tokens, and a leading space that is dropped."""
    tokenizer = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(PIECES)}, merges=[]))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


BYTE_FALLBACK = byte_fallback_tokenizer()
tricky = st.text(
    st.one_of(
        st.sampled_from("a é🙂👩‍👩‍👧‍👦🏳️‍🌈한국어中文日本 \n\u200d\ufe0f"), st.characters(exclude_categories=["Cs"])
    ),
    max_size=60,
)


def byte_level(ids: Sequence[int]) -> str:
    return BYTE_LEVEL.decode(list(ids))


def byte_fallback(ids: Sequence[int]) -> str:
    return BYTE_FALLBACK.decode(list(ids))


def run(decode: Decode, ids: list[int], before: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(decode, before)
    pieces = [detokenizer.push(token) for token in ids]
    pieces.append(detokenizer.flush())
    assert detokenizer.length == len("".join(pieces))
    return pieces


@given(tricky)
def test_text_comes_back_and_no_piece_holds_half_a_character(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    pieces = run(byte_level, ids)
    assert "".join(pieces) == text
    if HALF not in text:
        assert not any(HALF in piece for piece in pieces)


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=200))
@settings(max_examples=300)
def test_any_tokens_give_the_text_of_the_whole(ids: list[int]) -> None:
    known = [token for token in ids if BYTE_LEVEL.id_to_token(token) is not None]
    assert "".join(run(byte_level, known)) == byte_level(known)


@example([" 𐀀"])
@given(st.lists(st.one_of(st.integers(0, 4), tricky.filter(bool)), max_size=20))
def test_byte_fallback_gives_the_text_of_the_whole(parts: list[int | str]) -> None:
    ids: list[int] = []
    for part in parts:
        # Among byte tokens, nobody can tell a U+FFFD that is meant from half a character.
        ids += [part] if isinstance(part, int) else [5 + byte for byte in part.replace(HALF, "?").encode()]
    whole = byte_fallback(ids)
    pieces = run(byte_fallback, ids)
    assert "".join(pieces) == whole
    if HALF not in whole:
        assert not any(HALF in piece for piece in pieces)


def test_output_continues_the_prompt() -> None:
    hello, world = 0, 1
    assert run(byte_fallback, [world, world]) == ["world", " world", ""]
    assert run(byte_fallback, [world, world], [hello]) == [" world", " world", ""]
    half = [5 + byte for byte in "🙂".encode()]
    assert run(byte_fallback, half[2:], [hello, *half[:2]]) == ["", "🙂", ""]


@given(st.lists(st.one_of(st.integers(0, 4), tricky.filter(bool)), max_size=20), st.integers(0, 100))
def test_prompt_and_output_are_the_text_of_the_whole(parts: list[int | str], place: int) -> None:
    ids: list[int] = []
    for part in parts:
        ids += [part] if isinstance(part, int) else [5 + byte for byte in part.encode()]
    before, output = ids[: place % (len(ids) + 1)], ids[place % (len(ids) + 1) :]
    if HALF not in byte_fallback(ids) and HALF not in byte_fallback(before):
        assert byte_fallback(before) + "".join(run(byte_fallback, output, before)) == byte_fallback(ids)


def test_a_character_appears_with_its_last_byte() -> None:
    pieces = run(byte_fallback, [5 + byte for byte in "🙂".encode()])
    assert pieces == ["", "", "", "🙂", ""]


def test_an_output_that_ends_in_half_a_character_says_so_at_the_end() -> None:
    pieces = run(byte_fallback, [2, *(5 + byte for byte in "中".encode()[:2])])
    assert pieces[:-1] == ["a", "", ""]
    assert set(pieces[-1]) == {HALF}


@pytest.mark.parametrize("decode", [byte_level, byte_fallback])
def test_the_cost_of_a_token_stays_bounded_on_garbage(decode: Decode) -> None:
    longest = 0

    def watched(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    # 0xFF never is part of a character.
    garbage = BYTE_LEVEL.get_vocab()["ÿ"] if decode is byte_level else 5 + 0xFF
    text = "".join(run(watched, [garbage] * 1000))
    assert text == HALF * 1000
    assert longest <= 64

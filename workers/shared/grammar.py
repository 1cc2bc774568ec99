"""Grammars that restrict an output: which tokens may come next. Torch-free; the grammar engine is llguidance.

A grammar is a string in llguidance's own notation, which the server makes of JSON schemas, regular expressions and
Lark grammars. Rank 0 and the last stage each follow the output with a matcher of their own.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from workers.shared.errors import ConfigError, EchelonError
from workers.shared.model_files.end_tokens import read_end_tokens
from workers.shared.model_files.facts import read_facts

_REMEMBERED = 32  # grammars; requests with the same schema follow each other


class GrammarFailed(EchelonError):
    """A grammar does not compile, or cannot be followed any further within the library's limits."""


def load_grammars(folder: Path) -> "Grammars | None":
    """The model's grammars; None where the folder holds no tokenizer.json. Raises `ConfigError` for a broken one."""
    return Grammars(folder) if (folder / "tokenizer.json").exists() else None


class Grammars:
    """The vocabulary of one model as the grammar engine knows it; takes up to a second or two to build."""

    def __init__(self, folder: Path) -> None:
        """Reads the tokenizer of a prepared model folder; raises `ConfigError`."""
        vocab_size = read_facts(folder).vocab_size
        self.end_tokens = frozenset(token for token in read_end_tokens(folder) if token < vocab_size)
        try:
            text = (folder / "tokenizer.json").read_text(encoding="utf-8")
            self._tokenizer = LLTokenizer(text, n_vocab=vocab_size, eos_token=sorted(self.end_tokens) or None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder / 'tokenizer.json'}: {error}") from error
        self._compiled = lru_cache(_REMEMBERED)(self._compile)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    def matcher(self, grammar: str) -> LLMatcher:
        """A matcher before the first token, of a grammar that is compiled once. It holds its own error; see
        `GrammarMatcher`.
        """
        return self._compiled(grammar).deep_copy()

    def prepare(self, grammar: str) -> "Future[LLMatcher]":
        """Compiles a grammar in a thread, so that `matcher` need not. That takes up to seconds, in which others run."""
        return self._beside.submit(self._compiled, grammar)

    def spell(self, text: bytes) -> list[int]:
        """Tokens that write `text` as far as it is whole characters, the longest that fit, and none special."""
        return self._tokenizer.greedy_tokenize(text.decode("utf-8", errors="ignore"))

    def _compile(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))


class GrammarMatcher:
    """Follows one output, draft tokens included.

    Invariant: the matcher has consumed the longest legal prefix of the output. Rollback is a position: writing at a
    position forgets what was written from there on.
    """

    def __init__(self, grammars: Grammars, grammar: str) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._matcher = grammars.matcher(grammar)
        self._ends = grammars.end_tokens
        self._output: list[int] = []
        self._consumed = 0

    def __len__(self) -> int:
        return len(self._output)

    def token(self, position: int) -> int | None:
        """The token at `position`, None at or after the end."""
        return self._output[position] if position < len(self._output) else None

    def write(self, position: int, tokens: Sequence[int]) -> None:
        """Overwrites the output from `position` (counted from its start, at most its length) on."""
        del self._output[position:]
        self._output.extend(tokens)
        if self._matcher.is_error():
            # An error is final in the library, even if what led to it was only a draft.
            self._matcher = self._grammars.matcher(self._grammar)
            self._consumed = 0
        elif position < self._consumed:
            self._matcher.rollback(self._consumed - position)
            self._consumed = position
        if self._consumed <= position:
            self._consumed += self._matcher.try_consume_tokens(self._output[self._consumed :])

    def allowed(self) -> bytes | None:
        """A bit for each token that may come next, least significant bit first; None after an illegal token.

        An end token is among them only where the grammar accepts. Raises `GrammarFailed`.
        """
        self._check()
        if self._consumed < len(self._output):
            return None
        mask = self._matcher.compute_bitmask()
        self._check()
        forced = only_choice(mask)
        if forced is None or self._matcher.validate_tokens([forced]):
            return mask
        if forced in self._ends and self._matcher.is_accepting():
            return mask
        # Text that spells a special token is forced as that token, which the library then does not take.
        spelled = self._grammars.spell(self._matcher.compute_ff_bytes())
        if self._matcher.validate_tokens(spelled[:1]) == 0:
            raise GrammarFailed("the grammar requires text that this model's vocabulary cannot write")
        return only(spelled[0], len(mask))

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(f"the grammar cannot be followed: {self._matcher.get_error()}")


def permits(mask: bytes, token: int) -> bool:
    """Whether the bit of `token` is set."""
    return bool(mask[token >> 3] >> (token & 7) & 1)


def only(token: int, size: int) -> bytes:
    """A mask of `size` bytes with the bit of `token` alone."""
    return (1 << token).to_bytes(size, "little")


def only_choice(mask: bytes) -> int | None:
    """The token whose bit alone is set, or None."""
    number = int.from_bytes(mask, "little")
    return number.bit_length() - 1 if number.bit_count() == 1 else None

"""Turns tokens into text one at a time, never showing half a character."""

from collections.abc import Callable, Sequence

HALF = "\ufffd"  # what a decoder puts where bytes are not, or not yet, a character
_HALF_MAX = 3  # a character of UTF-8 has four bytes: at most three can wait for the rest
_WINDOW = 16  # tokens; decoders need some context (a leading space, a run of byte tokens), not the whole output
_CONTEXT = 4  # tokens that always stay in the window


class Detokenizer:
    """Invariant: the pieces returned so far are a prefix of the decoded output, and do not end inside a character.

    `decode` maps token ids to text, with U+FFFD for bytes that are no character. The output continues the text of the
    tokens `before`: a space between the two is its first character, where the same tokens alone would have none.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = _context(decode, before)  # the tokens whose text is still of interest
        self._text = decode(self._window)  # of the window
        self._sent = _shown(decode, self._window)  # characters of it that have been returned
        self._clean: list[int] = []  # window lengths at which everything had been returned: safe places to cut
        self._silent = 0  # tokens since text was last returned, or none was waited for
        self.length = 0  # characters returned in all

    def push(self, token: int) -> str:
        """Adds one token and returns the text that has become certain."""
        self._window.append(token)
        self._text = self._decode(self._window)
        certain = len(self._text.rstrip(HALF))
        if self._silent >= _HALF_MAX:
            # These bytes are never going to be a character, so they are not waited for any longer.
            certain = max(certain, len(self._text) - _HALF_MAX)
        piece = self._take(certain)
        self._silent = 0 if piece or not self._text.endswith(HALF) else self._silent + 1
        self._shorten()
        return piece

    def flush(self) -> str:
        """The rest, now that no more tokens will come: U+FFFD if the output ended inside a character."""
        return self._take(len(self._text))

    def _take(self, end: int) -> str:
        piece = self._text[self._sent : end]
        self._sent += len(piece)
        self.length += len(piece)
        return piece

    def _shorten(self) -> None:
        """Keeps the window, and with it the cost of a token, bounded."""
        clean = self._sent == len(self._text)
        if clean:
            self._clean.append(len(self._window))
        last = len(self._window) - _CONTEXT
        start = 0
        if clean and len(self._window) >= _WINDOW:
            start = max((length for length in self._clean if length <= last), default=0)
        if start == 0 and len(self._window) >= 4 * _WINDOW:
            start = len(self._window) - _WINDOW  # nothing but garbage: any place is as good as another
        if start > 0:
            unsent = len(self._text) - self._sent
            self._window = self._window[start:]
            self._clean = [length - start for length in self._clean if length > start]
            self._text = self._decode(self._window)
            self._sent = max(0, len(self._text) - unsent)


def _context(decode: Callable[[Sequence[int]], str], before: Sequence[int]) -> list[int]:
    """The last tokens of `before`, cut where no character is."""
    tail = list(before[-_WINDOW:])
    while len(tail) > _CONTEXT and decode(tail).startswith(HALF):
        tail = tail[1:]
    return tail


def _shown(decode: Callable[[Sequence[int]], str], window: Sequence[int]) -> int:
    """Characters of the text of `window`, without one that it ends inside of."""
    for end in range(len(window), max(0, len(window) - _HALF_MAX) - 1, -1):
        text = decode(window[:end])
        if not text.endswith(HALF):
            return len(text)
    return len(decode(window))

"""Finds stop strings in text that arrives in pieces, without letting any part of one out."""

from collections.abc import Sequence


class StopMatcher:
    """Invariant: what has been let out never contains a stop string, nor the beginning of one that may still complete.

    The stop string that completes first wins; of several that complete on the same character, the longest, as it
    begins first. Only the longest suffix that is a proper prefix of some stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("stop strings must not be empty")
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Takes the next piece of text and returns what may be shown; nothing more once a stop string matched."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        match = self._first_match(text)
        if match is not None:
            start, self.matched = match
            self._held = ""
            return text[:start]
        keep = self._open_suffix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, now that no more will come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if not found:
            return None
        end, _, stop = min(found)
        return end - len(stop), stop

    def _open_suffix(self, text: str) -> int:
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            suffix = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0

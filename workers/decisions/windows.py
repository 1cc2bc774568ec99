"""Which positions layers with a sliding window still hold of a sequence, where memory can be given back. No torch.

Such a layer reads the last `window` positions only. Two runs of positions are kept: those that frames behind the last
whole prompt chunks would read, so that a later prompt can begin there, and those that the frames of the text read,
however far back a rejection goes. Everything else is given back as the text advances.
"""

from workers.shared.errors import OutOfStep
from workers.shared.model_files.windows import WindowRule


class HeldWindow:
    """What one slot holds: `low` to `chunks`, and from `text` on."""

    def __init__(self, rule: WindowRule) -> None:
        self._rule = rule
        self._low = 0
        self._chunks = 0  # the end of the last whole prompt chunk
        self._text = 0

    def begin(self, position: int, length: int) -> tuple[int, int] | None:
        """A frame is about to be computed; returns positions, first and behind the last, that nobody will read again.

        Raises `OutOfStep` where it would read what was given back.
        """
        window, chunk, ahead, back = self._rule
        self._check(position)
        if position <= self._chunks:  # a request begins here, and writes whatever follows
            self._chunks = self._text = position
            self._low = min(self._low, position)
        if position == self._chunks and length == chunk and position % chunk == 0:
            self._chunks = self._text = position + length
            low = self._chunks - (back - 1) * chunk - window + 1
            if low > self._low:
                self._low = low
                return 0, low
            return None
        text = (position - ahead - window + 1) // chunk * chunk  # not at every token
        if text > self._text:
            self._text = text
            return self._chunks, text
        return None

    def copied(self, positions: int) -> int:
        """Another slot's beginning of so many positions comes in; returns the first that has to be copied."""
        self._low = max(0, positions - self._rule.window + 1)
        self._chunks = self._text = positions
        return self._low

    def lends(self, positions: int) -> None:
        """Another slot takes the first `positions` over; raises `OutOfStep` where a frame behind them cannot begin."""
        self._check(positions)

    def _check(self, position: int) -> None:
        first = max(0, position - self._rule.window + 1)
        if first < min(self._low, position) or (position > self._chunks < self._text > first):
            raise OutOfStep(
                f"a frame at {position} would read from {first} on; kept are {self._low}..{self._chunks - 1} and those "
                f"from {self._text} on"
            )

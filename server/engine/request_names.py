"""Which HTTP request a sequence belongs to. No sockets, no clock."""

from collections import OrderedDict
from collections.abc import Iterable

_KEPT = 4096  # sequences, the newest


class RequestNames:
    """By the ids that the engine knows, the `X-Request-Id` of whoever asked; kept a while after the end."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._names: OrderedDict[str, str] = OrderedDict()

    def remember(self, sequences: Iterable[str], name: str) -> None:
        """These are about to be opened."""
        for sequence in sequences:
            self._names[sequence] = name
        while len(self._names) > self._kept:
            self._names.popitem(last=False)

    def of(self, sequence: str) -> str:
        """The name of its request; empty where it is not known any more."""
        return self._names.get(sequence, "")

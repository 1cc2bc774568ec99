"""Numbers calls and names them, as every family's reader does."""

from collections.abc import Callable

from server.output.parts import CallPiece
from server.tool_parsers.call_object import CallObject


class Calls:
    """The calls of one answer, in order; `new_id` makes their ids."""

    def __init__(self, new_id: Callable[[], str], *, forced: bool, needs_arguments: bool) -> None:
        self._new_id = new_id
        self._forced = forced
        self._needs_arguments = needs_arguments
        self._index = -1
        self.begin()

    @property
    def count(self) -> int:
        """Calls so far, the one that is being read included."""
        return self._index + 1

    @property
    def current(self) -> CallObject:
        """The object that is being read."""
        return self._object

    def begin(self) -> None:
        """A new object begins."""
        self._object = CallObject(forced=self._forced, needs_arguments=self._needs_arguments)

    def push(self, char: str) -> list[CallPiece]:
        """Takes a character of the object."""
        self._object.push(char)
        progress = self._object.take()
        pieces = []
        if progress.name is not None:
            pieces.append(self.open(progress.name))
        if progress.arguments:
            pieces.append(CallPiece(self._index, progress.arguments))
        return pieces

    def open(self, name: str) -> CallPiece:
        """The first piece of the next call."""
        self._index += 1
        return CallPiece(self._index, "", self._new_id(), name)

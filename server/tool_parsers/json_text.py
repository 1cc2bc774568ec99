"""Follows JSON as it is written, one character at a time, without building it."""


class JsonValue:
    """Finds where one JSON value ends. What is not JSON is not refused: whoever reads the value will.

    Invariant: after each `push`, `ended` says whether the characters so far are the whole value. A number or a literal
    ends only before the character that follows it, which `push` then does not take.
    """

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._bare = False  # inside a number, true, false or null

    def push(self, char: str) -> bool:
        """Takes the next character; False if the value had ended before it. The first one must not be a space."""
        if self._in_string:
            self._string(char)
        elif self._bare:
            if char in ",}] \t\r\n":
                self.ended = True
                return False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.ended = self._depth <= 0
        elif self._depth == 0:
            self._bare = True
        return True

    def _string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            self.ended = self._depth == 0

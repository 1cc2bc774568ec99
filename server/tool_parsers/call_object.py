"""Reads `{"name": ..., "arguments": {...}}` as it is written, and passes the arguments on as they come."""

import json
from dataclasses import dataclass
from typing import Literal

from server.tool_parsers.json_text import JsonValue

_ARGUMENTS = ("arguments", "parameters")
State = Literal["start", "key", "colon", "value", "comma", "ended", "broken"]


@dataclass(frozen=True, slots=True)
class CallProgress:
    """What the characters so far have added: `name` when it has become known, then `arguments` in pieces."""

    name: str | None = None
    arguments: str = ""


class CallObject:
    """One object, character by character.

    Nothing is told before the name is known and arguments have begun; from then on the call stands, even if the
    object breaks off. An object that ends without arguments is a call with none, unless `needs_arguments`. Where the
    object is `forced` to be a call, the name alone is enough.
    """

    def __init__(self, *, forced: bool, needs_arguments: bool) -> None:
        self.state: State = "start"
        self.told = False  # whether the name has been told
        self._forced = forced
        self._needs_arguments = needs_arguments
        self._name: str | None = None
        self._key = ""
        self._value = JsonValue()
        self._text = ""  # of a key or value so far
        self._early: str | None = None  # arguments that came before the name
        self._new_name: str | None = None
        self._new_arguments = ""

    @property
    def done(self) -> bool:
        """Whether no more characters belong to the object."""
        return self.state in ("ended", "broken")

    def push(self, char: str) -> None:
        """Takes the next character; not to be called once `done`."""
        if self.state == "value" and self._in_value(char):
            return
        if self.state == "key" and self._text:
            self._in_key(char)
        elif not char.isspace() and not self.done:
            self._between(char)

    def take(self) -> CallProgress:
        """What has been added since the last call."""
        progress = CallProgress(self._new_name, self._new_arguments)
        self._new_name, self._new_arguments = None, ""
        return progress

    def _between(self, char: str) -> None:
        if (self.state, char) in (("start", "{"), ("comma", ",")):
            self.state = "key"
        elif self.state in ("key", "comma") and char == "}":
            self._end()
        elif (self.state, char) == ("key", '"'):
            self._value = JsonValue()
            self._in_key(char)
        elif (self.state, char) == ("colon", ":"):
            self.state, self._value, self._text = "value", JsonValue(), ""
        else:
            self.state = "broken"

    def _in_key(self, char: str) -> None:
        self._value.push(char)
        self._text += char
        if self._value.ended:
            key = _string(self._text)
            self._key, self._text = key or "", ""
            self.state = "broken" if key is None else "colon"
            if self._key in _ARGUMENTS and self._name is not None:
                self._tell()

    def _in_value(self, char: str) -> bool:
        """Takes a character of the value; False if the value had ended before it."""
        if not self._text and char.isspace():
            return True
        if not self._value.push(char):
            self._end_value()
            return False
        self._text += char
        if self._streams:
            self._new_arguments += char
        if self._value.ended:
            self._end_value()
        return True

    @property
    def _streams(self) -> bool:
        """Whether the value is passed on as it comes: an object of arguments, once the name is told."""
        return self.told and self._key in _ARGUMENTS and self._text.startswith("{")

    def _end_value(self) -> None:
        self.state = "comma"
        if self._key == "name" and self._name is None:
            self._name = _string(self._text)
            if self._name is None:
                self.state = "broken"
            elif self._early is not None:
                self._tell()
                self._new_arguments += self._early
            elif self._forced:
                self._tell()
        elif self._key in _ARGUMENTS and not self._streams:
            # Some models write the object as a string that holds JSON.
            text = _string(self._text) or self._text
            if self.told:
                self._new_arguments += text
            else:
                self._early = text
        self._text = ""

    def _tell(self) -> None:
        if not self.told:
            self.told, self._new_name = True, self._name

    def _end(self) -> None:
        if self._name is not None and not self.told and not self._needs_arguments:
            self._tell()
            self._new_arguments = "{}"
        self.state = "ended" if self.told else "broken"


def _string(text: str) -> str | None:
    """The string that `text` writes in JSON, None if it writes something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None

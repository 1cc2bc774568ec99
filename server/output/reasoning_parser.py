"""Separates what a model thought (`<think>...</think>`) from what it answers."""

from typing import Literal

from server.output.parts import Part, Reader, Reasoning, merge, split_at

OPEN, CLOSE = "<think>", "</think>"


class ReasoningReader:
    """Reasoning comes first or not at all; the answer is read by `answer`. Space around reasoning belongs to nobody.

    `inside` says that the prompt has opened it already.
    """

    def __init__(self, answer: Reader, *, inside: bool) -> None:
        self._answer = answer
        self._state: Literal["start", "inside", "gap", "answer"] = "inside" if inside else "start"
        self._held = ""
        self._began = False

    @property
    def finished(self) -> bool:
        """Whether the answer is complete."""
        return self._answer.finished

    def push(self, piece: str) -> list[Part]:
        """Takes the next piece of text."""
        if self._state == "answer":
            return self._answer.push(piece)
        parts: list[Part] = []
        for char in piece:
            parts += self._push(char)
        return merge(parts)

    def flush(self) -> list[Part]:
        """Reasoning that was not closed ends here; what only looked like its beginning is the answer."""
        held, self._held = self._held, ""
        if self._state == "inside":
            held = held.rstrip()
            return [Reasoning(held), *self._answer.flush()] if held else self._answer.flush()
        return [*(self._answer.push(held) if self._state == "start" else []), *self._answer.flush()]

    def _push(self, char: str) -> list[Part]:
        if self._state == "answer":
            return self._answer.push(char)
        if self._state == "gap":
            if char.isspace():
                return []
            self._state = "answer"
            return self._answer.push(char)
        self._held += char
        return self._start() if self._state == "start" else self._inside()

    def _start(self) -> list[Part]:
        begun = self._held.lstrip()
        if begun == OPEN:
            self._state, self._held = "inside", ""
        elif not OPEN.startswith(begun):
            held, self._held, self._state = self._held, "", "answer"
            return self._answer.push(held)
        return []

    def _inside(self) -> list[Part]:
        if not self._began:
            self._held = self._held.lstrip()
            self._began = bool(self._held)
        thought, self._held, closed = split_at(CLOSE, self._held)
        if closed:
            self._state = "gap"
        return [Reasoning(thought)] if thought else []

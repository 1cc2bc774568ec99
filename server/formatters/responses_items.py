"""Turns the parts of an answer into output items, and into the events that tell of them."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from server.output.parts import CallPiece, Part, Reasoning, Text
from server.protocol.responses_objects import (
    CallItem,
    Event,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)


class Items:
    """Invariant: all items but the last are completed; the last one is open until a part of another kind comes.

    `new_id` makes an item's id from its prefix.
    """

    def __init__(self, new_id: Callable[[str], str]) -> None:
        self._new_id = new_id
        self._number = 0
        self._call: int | None = None  # index of the open item's call
        self._open = False
        self.output: list[OutputItem] = []

    def event(self, kind: str, **fields: Any) -> Event:
        """An event of the stream, numbered."""
        self._number += 1
        return Event(kind, self._number - 1, **fields)

    def add(self, parts: Iterable[Part]) -> list[Event]:
        """Takes the next parts."""
        events: list[Event] = []
        for part in parts:
            if not self._continues(part):
                events += [*self.finish("completed"), *self._begin(part)]
            events += self._extend(part)
        return events

    def finish(self, status: Status) -> list[Event]:
        """Ends the open item, if there is one."""
        if not self._open:
            return []
        self._open = False
        item = self.output[-1] = replace(self.output[-1], status=status)
        place = {"item_id": item.id, "output_index": len(self.output) - 1}
        if isinstance(item, CallItem):
            kind = "response.function_call_arguments.done"
            events = [self.event(kind, **place, name=item.name, arguments=item.arguments)]
        else:
            text, part, place = item.content[0].text, item.content[0], {**place, "content_index": 0}
            if isinstance(item, MessageItem):
                events = [self.event("response.output_text.done", **place, text=text, logprobs=[])]
            else:
                events = [self.event("response.reasoning_text.done", **place, text=text)]
            events.append(self.event("response.content_part.done", **place, part=part))
        return [*events, self.event("response.output_item.done", output_index=len(self.output) - 1, item=item)]

    def _continues(self, part: Part) -> bool:
        item = self.output[-1] if self._open else None
        if isinstance(part, CallPiece):
            return isinstance(item, CallItem) and part.index == self._call
        return isinstance(item, MessageItem if isinstance(part, Text) else ReasoningItem)

    def _begin(self, part: Part) -> list[Event]:
        content: OutputText | ReasoningText | None = None
        if isinstance(part, Text):
            content = OutputText("")
            self.output.append(MessageItem(self._new_id("msg"), "in_progress", []))
        elif isinstance(part, Reasoning):
            content = ReasoningText("")
            self.output.append(ReasoningItem(self._new_id("rs"), "in_progress", []))
        else:
            self._call = part.index
            self.output.append(CallItem(self._new_id("fc"), "in_progress", part.id or "", part.name or "", ""))
        self._open = True
        item, index = self.output[-1], len(self.output) - 1
        events = [self.event("response.output_item.added", output_index=index, item=item)]
        if content is not None:
            self.output[-1] = replace(item, content=[content])
            place = {"item_id": item.id, "output_index": index, "content_index": 0}
            events.append(self.event("response.content_part.added", **place, part=content))
        return events

    def _extend(self, part: Part) -> list[Event]:
        item = self.output[-1]
        place = {"item_id": item.id, "output_index": len(self.output) - 1}
        if isinstance(item, CallItem):
            assert isinstance(part, CallPiece)
            self.output[-1] = replace(item, arguments=item.arguments + part.arguments)
            if not part.arguments:
                return []
            return [self.event("response.function_call_arguments.delta", **place, delta=part.arguments)]
        assert not isinstance(part, CallPiece)
        self.output[-1] = replace(item, content=[replace(item.content[0], text=item.content[0].text + part.text)])
        place["content_index"] = 0
        if isinstance(item, MessageItem):
            return [self.event("response.output_text.delta", **place, delta=part.text, logprobs=[])]
        return [self.event("response.reasoning_text.delta", **place, delta=part.text)]

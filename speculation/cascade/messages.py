"""What neighbours of a cascade tell each other: what they have written. Nothing is asked, nothing is acknowledged.

Both directions are alike: from a position on, the sender's text is such. Links keep order, so the receiver holds a copy
of the sender's text that is only ever late. Drafts are of use where that copy begins with all of the receiver's own
text: whatever was written before a correction was heard fails this by itself.
"""

import msgspec

from workers.shared.cascade.figures import ModelFigures
from workers.shared.frames import Natural
from workers.shared.messages import Sampling


class OpenText(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """To the next smaller model: from here on the slot's text is this one. Both sides' copies begin as `tokens`."""

    slot: Natural
    number: Natural  # of the request, on this connection
    prompt: Natural  # leading tokens that are the prompt
    tokens: list[int]
    sampling: Sampling


class WriteText(msgspec.Struct, frozen=True, array_like=True, tag="write"):
    """From `position` on, the sender's text is `tokens`, and nothing behind them so far."""

    slot: Natural
    number: Natural  # of the request whose text it is; of an earlier one it means nothing
    position: Natural
    tokens: list[int]


class LeaveCascade(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """The engine ends."""


class ModelsReport(msgspec.Struct, frozen=True, array_like=True, tag="models"):
    """Figures of the sender, and of all smaller models as far as it knows."""

    models: list[ModelFigures]


ToSmaller = OpenText | WriteText | LeaveCascade
ToBigger = WriteText | ModelsReport

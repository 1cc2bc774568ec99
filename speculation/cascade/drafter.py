"""The cascade as a drafter: what the models below the target have written ahead of it."""

import time
from collections.abc import Sequence
from pathlib import Path

from speculation.cascade.line import SmallerLine
from speculation.decisions.cascade.smaller import Smaller
from speculation.decisions.cascade.texts import ModelText
from speculation.drafters.base import PENDING, Answer, Draft, Drafter, Maker, Start
from workers.shared.cascade.endpoints import endpoint_of
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling
from workers.shared.model_files.vocabulary import check_vocabulary
from workers.shared.processes.logs import tell

_PATIENCE = 60.0  # seconds for the models to load, after which the engine starts without them
_PAUSE = 0.05  # seconds between two looks for them
SILENCE = 1.0  # seconds for drafts that are waited for


def load(engine: EngineConfig, vocab_size: int) -> Maker:
    """See `Loader`. Waits for the models to be there, so that the calibration finds them at work, but not for ever.

    Raises `ConfigError` where one of them has another vocabulary than the target.
    """
    config = engine.drafter
    if not config.cascade:
        raise ConfigError("--drafter cascade needs --cascade SMALL[,MIDDLE…]: models with the vocabulary of the target")
    if not engine.endpoints.cascade:
        raise ConfigError("endpoints.cascade: give the address of the cascade's links, such as unix:///run/cascade")
    for model in config.cascade:
        check_vocabulary(Path(model), Path(engine.model), "--cascade")
    ends = [Smaller(slot) for slot in range(engine.max_num_seqs)]
    biggest = len(config.cascade) - 1
    name = Path(config.cascade[biggest]).name
    line = SmallerLine(endpoint_of(engine.endpoints.cascade, biggest), name, ends)
    deadline = time.monotonic() + min(_PATIENCE, engine.ready_timeout)
    while not line.connected and time.monotonic() < deadline:
        line.tell()
        time.sleep(_PAUSE)
    if not line.connected:
        tell(f"cascade: {name} is not there yet; starting without it")
    return lambda slot: CascadeDrafter(line, ends[slot], config.cascade_lookahead)


class CascadeDrafter(Drafter):
    """Of one slot. All slots share the line to the biggest of the models."""

    def __init__(self, line: SmallerLine, smaller: Smaller, lookahead: int = 0) -> None:
        """Waits for `lookahead` drafts where there is hope for them; 0: whatever is there is drafted."""
        self.source = line
        self._line = line
        self._smaller = smaller
        self._lookahead = lookahead
        self._text = ModelText()
        self._asked: float | None = None  # monotonic seconds since when drafts are waited for
        self._silent = False  # they did not come; none are waited for until there are some

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """The models hear of the request with the next work ahead."""
        self._text = ModelText(prompt)
        self._smaller.open(self._text, len(prompt), sampling)
        self._asked = None

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Notes the token, which the models hear of with the next work ahead: of none while others draft."""
        self._text.write(count - 1, tokens[count - 1 : count])
        self._asked = None

    def advance(self) -> bool:
        """Tells the models what is new."""
        self._line.tell()
        return False

    def draft(self, tokens: Sequence[int]) -> Answer:
        """What has been written for the position; pending only where drafts are to be waited for."""
        count, final = len(tokens), len(self._text)
        drafts = self._smaller.drafts()
        if list(tokens[final:]) != list(drafts[: count - final]):
            return None  # something else has drafted
        if len(drafts) < self._lookahead and self._hopes(any_there=bool(drafts)):
            return PENDING
        return Draft((drafts[count - final],)) if len(drafts) > count - final else None

    def _hopes(self, *, any_there: bool) -> bool:
        """Whether more drafts may come: not from a process that has gone, or is silent for long."""
        now = time.monotonic()
        self._asked = now if self._asked is None else self._asked
        if any_there:
            self._silent = False
        elif now - self._asked >= SILENCE:
            self._silent = True
        return self._line.connected and not self._silent and now - self._asked < SILENCE

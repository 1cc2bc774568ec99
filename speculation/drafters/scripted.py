"""Drafters for tests and rehearsals, whose acceptance is chosen and not earned."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from speculation.drafters.base import Answer, Draft, Drafter, Maker, Start
from workers.decisions.made_up import MadeUpText
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling


def load(engine: EngineConfig, vocab_size: int) -> Maker:
    """See `Loader`."""
    path, acceptance = engine.drafter.script, engine.drafter.scripted_acceptance
    if (path is None) == (acceptance is None):
        raise ConfigError("--drafter scripted needs either --script FILE or --scripted-acceptance P, not both")
    if acceptance is not None:
        text = MadeUpText(vocab_size, acceptance, engine.drafter.scripted_rescue)
        return lambda slot: MadeUpDrafter(text)
    assert path is not None
    script = load_script(Path(path))
    return lambda slot: ScriptedDrafter(script, vocab_size)


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plain run to replay."""

    tokens: list[int]  # prompt and output
    wrong_at: frozenset[int] = frozenset()  # positions at which the draft is wrong
    wrong_probability: float = 0.0  # of the draft at every other position


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file behind `--script`."""

    recordings: list[Recording]


def load_script(path: Path) -> Script:
    """Reads a JSON script; raises `ConfigError` naming the offending field."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Script)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"--script {path}: {error}") from error


class ScriptedDrafter(Drafter):
    """Replays the recording that begins with the prompt; drafts nothing where there is none, or past its end."""

    def __init__(self, script: Script, vocab_size: int) -> None:
        self._recordings = script.recordings
        self._vocab_size = vocab_size
        self._recording: Recording | None = None

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Finds the recording."""
        given = list(prompt)
        self._recording = next((r for r in self._recordings if r.tokens[: len(given)] == given), None)

    def draft(self, tokens: Sequence[int]) -> Answer:
        """The recorded token at this position, or the one after it in the vocabulary where the script says wrong."""
        recording, position = self._recording, len(tokens)
        if recording is None or position >= len(recording.tokens):
            return None
        right = recording.tokens[position]
        wrong = position in recording.wrong_at or random.Random(position).random() < recording.wrong_probability
        return Draft(((right + 1) % self._vocab_size if wrong else right,))


class MadeUpDrafter(Drafter):
    """Knows something of the text that the sampler makes up in rehearsals."""

    def __init__(self, text: MadeUpText) -> None:
        self._text = text

    def draft(self, tokens: Sequence[int]) -> Answer:
        """Candidates that depend on the position and the token before it."""
        guess = self._text.guess(len(tokens), tokens[-1])
        return Draft(guess.candidates, guess.chances[0], chances=guess.chances)

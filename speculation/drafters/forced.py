"""Drafts what a grammar leaves no choice about, and asks another drafter for the rest."""

from collections.abc import Sequence

from speculation.drafters.base import Answer, Draft, Drafter, DrafterWrapper, Start
from workers.shared.grammar import GrammarFailed, GrammarMatcher, Grammars, only_choice, permits
from workers.shared.messages import Sampling


class ForcedDrafter(DrafterWrapper):
    """Wraps a drafter. Without a grammar it is that drafter.

    With one, the only legal token is the draft, and a guess that is not legal is no draft: it would be rejected for
    certain.
    """

    def __init__(self, inner: Drafter, grammars: Grammars) -> None:
        super().__init__(inner)
        self._grammars = grammars
        self._matcher: GrammarMatcher | None = None
        self._prompt_tokens = 0
        self._outputs = 0  # verified

    def prepare(self, sampling: Sampling) -> None:
        """Begins to compile the grammar, if there is one."""
        self._inner.prepare(sampling)
        if sampling.grammar is not None:
            self._grammars.prepare(sampling.grammar)

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Begins with the grammar, if there is one; waits for it where it is not compiled yet."""
        self._inner.begin(prompt, sampling, start)
        self._matcher = None if sampling.grammar is None else GrammarMatcher(self._grammars, sampling.grammar)
        self._prompt_tokens = len(prompt)
        self._outputs = 0

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Follows the newest verified token, which corrects the matcher where another one was drafted in its place."""
        self._inner.verified(tokens, count)
        if self._matcher is not None:
            self._outputs = count - self._prompt_tokens
            place = self._outputs - 1
            if self._matcher.token(place) != tokens[count - 1]:
                self._matcher.write(place, [tokens[count - 1]])

    def draft(self, tokens: Sequence[int]) -> Answer:
        """The only legal token, else the other drafter's guess if it is legal."""
        allowed = self._allowed(tokens)
        if allowed is None:
            return self._inner.draft(tokens)
        forced = only_choice(allowed)
        if forced is not None:
            return Draft((forced,))
        guess = self._inner.draft(tokens)
        if not isinstance(guess, Draft):
            return guess
        legal = [place for place, token in enumerate(guess.candidates) if permits(allowed, token)]
        chances = tuple(guess.chances[place] for place in legal) if guess.chances else ()
        candidates = tuple(guess.candidates[place] for place in legal)
        return Draft(candidates, guess.confidence, chances=chances) if legal else None

    def _allowed(self, tokens: Sequence[int]) -> bytes | None:
        if self._matcher is None:
            return None
        matcher, behind = self._matcher, self._prompt_tokens
        place, end = self._outputs, len(tokens) - behind
        while place < min(end, len(matcher)) and matcher.token(place) == tokens[behind + place]:
            place += 1
        if place < max(end, len(matcher)):  # drafts of another branch, or none yet
            matcher.write(place, tokens[behind + place :])
        try:
            return self._matcher.allowed()
        except GrammarFailed:
            return None  # the last stage says so, if its own matcher fails too

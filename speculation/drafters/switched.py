"""Asks whichever of a drafter's ways the request's session has chosen, or none of them."""

from collections.abc import Sequence

from speculation.decisions.drafts.tree import Node
from speculation.decisions.estimates import Choice, Judgement
from speculation.drafters.base import PENDING, Answer, Deciding, Draft, Drafter, DrafterWrapper, Start
from workers.shared.messages import Sampling


class SwitchedDrafter(DrafterWrapper):
    """Wraps a drafter that may have parts. All of them hear what happens, as far as they may be chosen."""

    def __init__(self, inner: Drafter, name: str, choices: Sequence[Choice]) -> None:
        super().__init__(inner)
        ways = {name: inner, **inner.parts}
        self._ways = {choice: ways[choice.name] for choice in choices if choice.name in ways}
        self._session: Deciding | None = None
        self._deaf = False

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Takes the session of the request."""
        self._session = start.session
        self._inner.begin(prompt, sampling, start)
        self._deaf = False
        self._follow()

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Tells the session what others than the chosen one would have drafted, where that costs nothing."""
        session = self._session
        if session is not None:
            for choice, way in self._ways.items():
                if choice is not session.choice and (answer := way.hindsight(tokens, count)) is not PENDING:
                    session.foreseen(choice, _verdict(answer, tokens[count - 1]))
        self._follow()
        self._inner.verified(tokens, count)

    def advance(self) -> bool:
        """The work ahead of the chosen one, and of those for which it costs next to nothing."""
        chosen = self._way()
        more = chosen is not None and chosen.advance()
        for way in self._ways.values():
            if way.cheap and way is not chosen:
                more = way.advance() or more
        return more

    def level(self, tokens: Sequence[int], verified: int, leaves: Sequence[Node]) -> None:
        """For the chosen one."""
        if (way := self._way()) is not None:
            way.level(tokens, verified, leaves)

    def draft(self, tokens: Sequence[int]) -> Answer:
        """The chosen one's answer."""
        way, session = self._way(), self._session
        answer = None if way is None else way.draft(tokens)
        if session is None:
            return answer
        if answer is not PENDING:
            session.answered()
        return session.overrule(len(tokens), answer)

    def _way(self) -> Drafter | None:
        return self._inner if self._session is None else self._ways.get(self._session.choice)

    def _follow(self) -> None:
        if self._session is not None and not self._session.listening and not self._deaf:
            self._deaf = True
            self._inner.deafen()


def _verdict(draft: Draft | None, token: int) -> Judgement:
    if draft is None:
        return Judgement.SILENT
    return Judgement.RIGHT if draft.token == token else Judgement.WRONG

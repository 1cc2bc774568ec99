"""Shares the frames in flight among running requests, each to the frame worth most. No torch, no sockets, no clock.

A frame with verified tokens, or with a piece of a prompt, is certain and goes first. A draft is worth the probability
that it and all drafts before it are accepted. So a request alone has all its drafts in the pipeline, as many requests
as there are credits have none, and in between there is a mixture. Equal worth: whoever was served longest ago.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from speculation.decisions.drafts.steps import FrameKind
from speculation.decisions.turns import Turns


class Claim(NamedTuple):
    """What one running request has in the pipeline, and what it would send next."""

    offer: FrameKind | None  # what the frame is that it could send now
    in_flight: int = 0  # its frames
    prompts: int = 0  # those of them that are pieces of its prompt
    decoding: bool = True  # its prompt is done
    worth: float = 1.0  # of the offer: probability that the drafts which have to be right for it are
    draft_worth: float | None = None  # the same of the draft that it could use now; None: it wants none
    opens_frame: bool = True  # that draft would be a frame, and not join one that waits for it


class Credits:
    """Knows nothing of requests but their slots, their claims, and who was served longest ago."""

    def __init__(self, total: int, prompt_share: float) -> None:
        """`total` frames may be in flight. While some requests decode, pieces of prompts get `prompt_share` of them.

        At least one, so that no prompt starves.
        """
        self.total = total
        self.most_prompts = max(1, int(prompt_share * total))
        self._turns = Turns()

    def grant(self, claims: Mapping[int, Claim]) -> int | None:
        """The slot whose offer goes now, which counts as served; None where no credit is free or nobody may have it."""
        if sum(claim.in_flight for claim in claims.values()) >= self.total:
            return None
        held_back = (
            any(claim.decoding for claim in claims.values())
            and sum(claim.prompts for claim in claims.values()) >= self.most_prompts
        )
        eligible = [
            (claim.offer != "draft", claim.worth, slot)
            for slot, claim in claims.items()
            if claim.offer is not None and not (held_back and claim.offer == "prompt")
        ]
        if not eligible:
            return None
        slot = self._best(eligible)[0]
        self._turns.took(slot)
        return slot

    def drafting(self, claims: Mapping[int, Claim]) -> list[int]:
        """The slots whose drafter is to be asked now, the one whose draft is worth most first.

        Drafting runs one frame ahead of the credits, and stops where certain frames take them all.
        """
        outstanding = sum(claim.in_flight + (claim.offer is not None) for claim in claims.values())
        room = len(claims) < max(2, self.total) and outstanding <= self.total
        return self._best(
            (False, claim.draft_worth, slot)
            for slot, claim in claims.items()
            if claim.draft_worth is not None and (room or not claim.opens_frame)
        )

    def _best(self, candidates: Iterable[tuple[bool, float, int]]) -> list[int]:
        """Slots, those first that are certain, and then by worth: a draft that never fails is still a draft."""
        ordered = sorted((not certain, -worth, self._turns.last(slot), slot) for certain, worth, slot in candidates)
        return [slot for *_, slot in ordered]

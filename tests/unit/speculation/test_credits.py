"""Credits shared among requests: against a naive oracle, and over many turns of made-up requests."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.credits import Claim, Credits
from speculation.decisions.drafts.steps import FrameKind

OFFERS: list[FrameKind | None] = [None, "certain", "prompt", "draft"]
CLAIMS = st.builds(
    Claim,
    offer=st.sampled_from(OFFERS),
    in_flight=st.integers(0, 3),
    prompts=st.integers(0, 2),
    decoding=st.booleans(),
    worth=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    draft_worth=st.sampled_from([None, 0.0, 0.3, 0.9]),
    opens_frame=st.booleans(),
)


def oracle(claims: dict[int, Claim], total: int, most_prompts: int, order: list[int]) -> int | None:
    """Tries the requests in the order of their last turn; a later one must be worth more."""
    if sum(claim.in_flight for claim in claims.values()) >= total:
        return None
    crowded = sum(claim.prompts for claim in claims.values()) >= most_prompts
    best: int | None = None
    best_worth = -1.0
    for slot in order:
        claim = claims[slot]
        if claim.offer is None:
            continue
        if claim.offer == "prompt" and crowded and any(other.decoding for other in claims.values()):
            continue
        worth = claim.worth if claim.offer == "draft" else claim.worth + 2.0
        if worth > best_worth:
            best, best_worth = slot, worth
    return best


@given(
    st.lists(st.dictionaries(st.integers(0, 4), CLAIMS, max_size=5), max_size=20),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_every_credit_goes_where_a_naive_reading_of_the_rules_sends_it(
    turns: list[dict[int, Claim]], total: int, share: float
) -> None:
    credits, order = Credits(total, share), list(range(5))
    most_prompts = max(1, int(share * total))
    for claims in turns:
        expected = oracle(claims, total, most_prompts, [slot for slot in order if slot in claims])
        assert credits.grant(claims) == expected
        if expected is not None:
            order.remove(expected)
            order.append(expected)


@dataclass
class Made:
    """A request that decodes after some pieces of a prompt, and whose drafts are right by chance."""

    prompts: int
    acceptance: float
    flying: list[str] = field(default_factory=list)
    certain_waits: bool = False
    draft_waits: bool = False
    served: int = 0  # tokens

    def claim(self) -> Claim:
        worth = self.acceptance ** (self.flying.count("draft") + 1)
        offer: FrameKind | None = None
        if self.prompts:
            offer = "prompt"
        elif self.certain_waits:
            offer = "certain"
        elif self.draft_waits:
            offer = "draft"
        waiting = offer is not None
        decoding = self.served > 0
        return Claim(
            offer=offer,
            in_flight=len(self.flying),
            prompts=self.flying.count("prompt"),
            decoding=decoding,
            worth=worth if offer == "draft" else 1.0,
            draft_worth=worth if decoding and not waiting else None,
        )

    def send(self) -> None:
        if self.prompts:
            self.prompts -= 1
            self.flying.append("prompt")
        elif self.certain_waits:
            self.certain_waits = False
            self.flying.append("certain")
        else:
            self.draft_waits = False
            self.flying.append("draft")


@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0.0, 0.5, 0.95, 1.0])), min_size=1, max_size=9),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.randoms(use_true_random=False),
)
def test_nobody_starves_no_credit_is_lost_and_none_is_invented(
    requests: list[tuple[int, float]], total: int, share: float, rng: random.Random
) -> None:
    credits = Credits(total, share)
    made = {slot: Made(prompts, acceptance) for slot, (prompts, acceptance) in enumerate(requests)}
    pipeline: list[tuple[int, str]] = []

    def claims() -> dict[int, Claim]:
        return {slot: request.claim() for slot, request in made.items()}

    work = sum(prompts for prompts, _ in requests) + len(requests)
    for _ in range(20 * work):
        now = claims()
        while (slot := credits.grant(now)) is not None:
            if now[slot].offer == "draft":
                certain = [c for c in now.values() if c.offer == "certain"]
                assert not certain, "a draft went before a certain frame"
            made[slot].send()
            pipeline.append((slot, made[slot].flying[-1]))
            now = claims()
        assert len(pipeline) <= total
        if len(pipeline) < total:
            crowded = sum(c.prompts for c in now.values()) >= credits.most_prompts
            assert all(c.offer is None or (c.offer == "prompt" and crowded) for c in now.values())
        if all(claim.decoding for claim in now.values()) and len(made) >= max(2, total):
            assert credits.drafting(now) == [], "certain work fills the pipeline"
        for slot in credits.drafting(now)[:1]:
            made[slot].draft_waits = True
        if not pipeline:
            continue
        slot, kind = pipeline.pop(0)
        request = made[slot]
        request.flying.pop(0)
        if kind == "prompt" and (request.prompts or "prompt" in request.flying):
            continue
        request.served += 1
        drafted = bool(request.flying) or request.draft_waits
        if drafted and rng.random() < request.acceptance:
            if request.flying:
                request.flying[0] = "certain"
            else:
                request.draft_waits, request.certain_waits = False, True
        else:
            pipeline = [(other, kind) for other, kind in pipeline if other != slot]
            request.flying.clear()
            request.draft_waits, request.certain_waits = False, True
    assert all(request.served > 0 for request in made.values())
    rates = [request.served for request in made.values()]
    if len(made) >= total:
        assert min(rates) > 0


def test_a_request_alone_has_drafts_for_every_credit_and_one_more_that_waits() -> None:
    credits, request = Credits(4, 0.5), Made(0, 0.5, certain_waits=True, served=1)
    for _ in range(10):
        while credits.grant({0: request.claim()}) is not None:
            request.send()
        request.draft_waits |= bool(credits.drafting({0: request.claim()}))
    assert request.flying == ["certain", "draft", "draft", "draft"]
    assert request.draft_waits
    assert credits.drafting({0: request.claim()}) == []


def test_drafts_go_to_the_requests_whose_drafts_are_right_and_depth_makes_them_equal() -> None:
    credits = Credits(8, 0.5)
    claims = {
        0: Claim("draft", in_flight=1, worth=0.3),
        1: Claim("draft", in_flight=3, worth=0.9**3),
    }
    assert credits.grant(claims) == 1
    claims[1] = Claim("draft", in_flight=3, worth=0.9**12)
    assert credits.grant(claims) == 0

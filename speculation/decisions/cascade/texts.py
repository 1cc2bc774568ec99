"""A text that grows and is cut now and then, and how far others have followed it. Pure."""

from collections.abc import Sequence

from workers.shared.errors import OutOfStep


class Follower:
    """How far somebody has taken a text over; a cut puts it back."""

    def __init__(self, at: int) -> None:
        self.at = at  # positions it has


class ModelText:
    """Prompt and output of one request, as one model has them."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)
        self._followers: list[Follower] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def follower(self, at: int = 0) -> Follower:
        """One that has the first `at` positions."""
        follower = Follower(at)
        self._followers.append(follower)
        return follower

    def write(self, position: int, tokens: Sequence[int]) -> None:
        """From `position` on, the text is `tokens`. Raises `OutOfStep` where it does not reach that far."""
        if position > len(self.tokens):
            raise OutOfStep(f"a text of {len(self.tokens)} tokens was to be written from position {position} on")
        if position < len(self.tokens):
            del self.tokens[position:]
            for follower in self._followers:
                follower.at = min(follower.at, position)
        self.tokens.extend(tokens)


class Agreement:
    """How far two texts are the same, kept up to date at the cost of what has changed."""

    def __init__(self, one: ModelText, other: ModelText, at: int = 0) -> None:
        """The first `at` positions are known to agree."""
        self._texts = one, other
        self._seen = one.follower(at), other.follower(at)

    def reach(self) -> int:
        """Leading positions in which they agree."""
        one, other = (text.tokens for text in self._texts)
        end = min(follower.at for follower in self._seen)
        most = min(len(one), len(other))
        while end < most and one[end] == other[end]:
            end += 1
        for follower in self._seen:
            follower.at = end
        return end

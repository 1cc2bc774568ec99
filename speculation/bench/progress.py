"""The progress bar, and how long is left: starting takes as long as many answers."""

from types import TracebackType

from tqdm import tqdm

_FORMAT = "{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} answers [{elapsed}{postfix}]"


class Forecast:
    """Seconds that are left, if starts and answers go on taking what they have taken so far. Pure."""

    def __init__(self, starts: int, answers: int) -> None:
        self._left = {"start": starts, "answer": answers}
        self._done = {"start": 0, "answer": 0}
        self._seconds = {"start": 0.0, "answer": 0.0}

    def took(self, what: str, seconds: float, count: int = 1) -> None:
        """`count` starts or answers took so many seconds together."""
        self._left[what] -= count
        self._done[what] += count
        self._seconds[what] += seconds

    @property
    def seconds_left(self) -> float | None:
        """None while nothing is known of a kind of work that is still to be done."""
        left = 0.0
        for what, count in self._left.items():
            if count > 0:
                if not self._done[what]:
                    return None
                left += count * self._seconds[what] / self._done[what]
        return left


class AnswerBar:
    """A bar of answers, with the time that is left."""

    def __init__(self, starts: int, answers: int) -> None:
        self._forecast = Forecast(starts, answers)
        self._bar = tqdm(total=answers, bar_format=_FORMAT)

    def say(self, what: str) -> None:
        """What is being done now."""
        self._bar.set_description(what)

    def started(self, seconds: float, count: int) -> None:
        """So many contenders are ready."""
        self._forecast.took("start", seconds, count)
        self._tell()

    def answered(self, seconds: float) -> None:
        """One more answer."""
        self._forecast.took("answer", seconds)
        self._bar.update()
        self._tell()

    def _tell(self) -> None:
        left = self._forecast.seconds_left
        if left is not None:
            self._bar.set_postfix_str(f"about {tqdm.format_interval(left)} left")

    def __enter__(self) -> "AnswerBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

"""Training runs on the tiny target, through the command line's own functions."""

from pathlib import Path

from speculation.training import train
from speculation.training.interruption import StopSignals


class Stopped(StopSignals):
    """Asks to stop after a number of steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0


def arguments(target: Path, data: Path, out: Path, *others: str) -> list[str]:
    """A short run; what is in `others` comes last, and so counts."""
    fixed = "--layers 2 --anchors 0,2,4,6,8 --steps 8 --batch-tokens 150 --held-out 0.2 --name tiny --lr 3e-3"
    given = f"{fixed} --stages 2,3,4 --warmup 2 {' '.join(others)}"
    return [str(target), "--data", str(data), "--out", str(out), *given.split()]


def run(target: Path, data: Path, out: Path, *others: str, steps: int = 1000) -> bool:
    """Trains, at most `steps` steps; returns whether the run is complete."""
    given = arguments(target, data, out, *others)
    return train.train(train.build_parser().parse_args(given), given, Stopped(steps))

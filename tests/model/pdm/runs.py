"""Training runs on the tiny target, through the command line's own functions."""

from pathlib import Path

from speculation.training import train
from speculation.training.interruption import StopSignals
from speculation.training.options import TRAIN_PROGRAM
from workers.shared.options.sources import read


class Stopped(StopSignals):
    """Asks to stop after a number of steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0


def arguments(target: Path, data: Path, out: Path, *others: str) -> list[str]:
    """A short run; what is in `others` replaces what it has by itself."""
    usual = {"--layers": "2", "--anchors": "0,2,4,6,8", "--steps": "8", "--batch-tokens": "150", "--held-out": "0.2"}
    usual |= {"--name": "tiny", "--lr": "3e-3", "--stages": "2,3,4", "--warmup": "2", "--data": str(data)}
    words = " ".join(others).split()
    if {"eagle3", "peagle"} & {*words}:
        del usual["--stages"]
    given = [word for flag, value in usual.items() if flag not in words for word in (flag, value)]
    return [str(target), "--out", str(out), *given, *words]


def run(target: Path, data: Path, out: Path, *others: str, steps: int = 1000) -> bool:
    """Trains, at most `steps` steps; returns whether the run is complete."""
    given = arguments(target, data, out, *others)
    return train.train(read(TRAIN_PROGRAM, given, {}), given, Stopped(steps))

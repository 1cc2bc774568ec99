"""`python -m tests.measure.made_up_machines`: the controller against the best fixed choice, in made-up machines.

Tokens a second as a share of the best choice's, which knows from the start: the mean over `--seeds`, and the least.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from msgspec.structs import asdict

from speculation.decisions.estimates import Choice, Measured, Times
from tests.simulation.controller_sim import (
    ALL,
    NONE,
    OWN_DEVICE,
    PLAIN,
    SHARED_CORES,
    TEXTS,
    Machine,
    Shares,
    bursts,
    calibrate,
    machine,
    play,
    text,
)

_MODULES = {"own device": OWN_DEVICE, "shared cores": SHARED_CORES}
_SHORT = (64,) * 6
_LONG = (256,) * 3


def main() -> None:
    """Prints a row a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    seeds = range(parser.parse_args().seeds)
    print("| case |", " | ".join(_MODULES), "|")
    print("| --- |", " | ".join("---" for _ in _MODULES), "|")
    for case in _cases(seeds):
        print(case, flush=True)
    ratios = [_always_wrong(seed) for seed in seeds]
    print(f"| always wrong, eight answers of 64 tokens | {_shown(ratios)} | |")


def _cases(seeds: Sequence[int]) -> Iterator[str]:
    for name in TEXTS:
        yield _row(name, [_ratios(module, text(name), _SHORT, seeds) for module in _MODULES.values()])
    for name in TEXTS:
        yield _row(f"{name}, calibration disturbed", [_disturbed(module, name, seeds) for module in _MODULES.values()])
    for name in TEXTS:
        yield _row(
            f"{name}, always disturbed",
            [_ratios(module, text(name), _SHORT, seeds, busy=True) for module in _MODULES.values()],
        )
    for error in (0.8, 1.2):
        for name in ("code", "prose"):
            yield _row(
                f"{name}, module taken for {error:g} of its time",
                [_mistaken(module, name, error, seeds) for module in _MODULES.values()],
            )
    for before, name in (("repetitive", "strange"), ("repetitive", "prose"), ("strange", "code")):
        shares = text(name, until=128, before=before)
        yield _row(
            f"{before}, from token 128 on {name}",
            [_ratios(module, shares, _LONG, seeds) for module in _MODULES.values()],
        )


def _row(case: str, columns: Sequence[Sequence[float]]) -> str:
    return f"| {case} | {' | '.join(map(_shown, columns))} |"


def _shown(ratios: Sequence[float]) -> str:
    return f"{fmean(ratios):.3f} ({min(ratios):.2f})"


def _ratios(
    module: Times, shares: Shares, answers: Sequence[int], seeds: Sequence[int], *, busy: bool = False
) -> list[float]:
    ratios = []
    for seed in seeds:
        made_up = machine(module, rng=random.Random(seed))
        if busy:
            made_up.slower = _others(seed)
        ratios.append(play(ALL, made_up, shares, answers).ratio)
    return ratios


def _disturbed(module: Times, name: str, seeds: Sequence[int]) -> list[float]:
    """All took 1.4 times as long for a third of the time while the calibration was made."""
    ratios = []
    for seed in seeds:
        measured = calibrate(machine(module, rng=random.Random(seed), slower=_others(seed)), ALL)
        quiet = machine(module, rng=random.Random(seed))
        ratios.append(play(ALL, quiet, text(name), _SHORT, measured=measured).ratio)
    return ratios


def _mistaken(module: Times, name: str, error: float, seeds: Sequence[int]) -> list[float]:
    wrong = Times(**{verdict: error * seconds for verdict, seconds in asdict(module).items()})
    measured = Measured({"none": PLAIN, "ngram": PLAIN, "pdm+ngram": wrong, "pdm": wrong}, free=["ngram"])
    return [
        play(ALL, machine(module, rng=random.Random(seed)), text(name), _SHORT, measured=measured).ratio
        for seed in seeds
    ]


def _always_wrong(seed: int) -> float:
    wrong = Choice("wrong", prior=0.7)
    made_up = Machine(lambda name: PLAIN, lambda name: 0.0, rng=random.Random(seed))
    return play([NONE, wrong], made_up, lambda name, token: (0.0, float(name == "none")), (64,) * 8).ratio


def _others(seed: int) -> Callable[[float], float]:
    return bursts(random.Random(100 + seed), 1.4, 2.0, 1.0)


if __name__ == "__main__":
    main()

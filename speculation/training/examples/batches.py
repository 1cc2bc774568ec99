"""The order of examples: a function of the seed and the step alone, so that a resumed run repeats it."""

import random
from collections.abc import Iterator, Sequence


def batches(lengths: Sequence[int], budget: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of example indices; each holds at most `budget` tokens, or a single longer example.

    Every epoch is a fresh permutation of all examples, packed in order.
    """
    epoch = 0
    while True:
        order = list(range(len(lengths)))
        random.Random(f"order {seed} {epoch}").shuffle(order)
        batch: list[int] = []
        tokens = 0
        for index in order:
            if batch and tokens + lengths[index] > budget:
                yield batch
                batch, tokens = [], 0
            batch.append(index)
            tokens += lengths[index]
        yield batch
        epoch += 1

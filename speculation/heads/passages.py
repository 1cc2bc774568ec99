"""Text that comes with Echelon, as a target sees it: its hidden states, and what it would have written behind each
token. The target's layers are loaded a few at a time, so a small part of it is in memory."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from speculation.heads.readings import SeenText
from workers.model.shard import Shard
from workers.shared.model_files.tensor_sizes import layer_bytes
from workers.shared.model_files.vocabulary import read_tokenizer

_GROUP_BYTES = 1 << 30  # of weights in a file, at a time
_LONGEST = 160  # tokens of a passage
TEXTS = (
    "The river rises in the hills above the town and turns twice before it reaches the old bridge. In spring, when the "
    "snow melts, the water comes up to the third step of the landing, and the children are told to stay away from it. "
    "The mill has not worked for many years, but its wheel still turns slowly whenever the river is high, and on quiet "
    "nights the sound of it can be heard as far as the church.",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total / len(values)"
    "\n\n\ndef variance(values):\n    center = mean(values)\n    total = 0\n    for value in values:\n"
    "        total += (value - center) ** 2\n    return total / len(values)\n",
    "Question: A shop sells pencils for 3 dollars each and notebooks for 5 dollars each. Anna buys 4 pencils and 2 "
    "notebooks. How much does she pay?\nAnswer: The pencils cost 4 times 3 dollars, which is 12 dollars. The notebooks "
    "cost 2 times 5 dollars, which is 10 dollars. Together that is 12 plus 10 dollars, so she pays 22 dollars.",
)


def read_passages(
    target: Path, anchors: Sequence[int], dtype: torch.dtype, device: torch.device, progress: Callable[[int, int], None]
) -> list[SeenText]:
    """The texts as the model folder `target` sees them, with the hidden states `anchors`.

    `progress(done, total)` counts bytes of layers. Raises `ConfigError` where the folder cannot be read.
    """
    texts = _tokens(target)
    hidden: list[Tensor | None] = [None] * len(texts)
    taps: list[list[Tensor]] = [[] for _ in texts]
    sizes, _ = layer_bytes(target)
    best: list[Tensor] = []
    for layers in groups(sizes, _GROUP_BYTES):
        last = layers.stop == len(sizes)
        shard = Shard.load(
            target,
            layers,
            first=layers.start == 0,
            last=last,
            dtype=dtype,
            device=device,
            max_len=max(map(len, texts)),
            sequences=1,
        )
        shard.observe(anchors)
        for place, tokens in enumerate(texts):
            output = shard.forward(0, 0, tokens, hidden[place], taps[place])
            hidden[place] = output
            if last:
                best.append(shard.row_logits(output).argmax(-1))
        progress(sum(sizes[: layers.stop]), sum(sizes))
    return [
        SeenText(tokens, torch.stack(tapped, dim=1), likeliest)
        for tokens, tapped, likeliest in zip(texts, taps, best, strict=True)
    ]


def groups(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Consecutive layers of these `sizes`, at least one and at most `most` bytes at a time."""
    start, held = 0, 0
    for layer, size in enumerate(sizes):
        if layer > start and held + size > most:
            yield range(start, layer)
            start, held = layer, 0
        held += size
    yield range(start, len(sizes))


def _tokens(target: Path) -> list[list[int]]:
    tokenizer = read_tokenizer(target)
    return [tokenizer.encode(text).ids[:_LONGEST] for text in TEXTS]

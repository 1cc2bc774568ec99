"""`python -m tests.measure.packed_accuracy --prompts DIR`: what each way to hold weights costs in accuracy.

The model's weights, unpacked to float32, answer some prompts greedily. Each scheme then reads the same prompts and
answers: its logits are compared with those of the very weights it holds, unpacked (what the product rounds), and with
the original (what the scheme rounds, too), and so is the token it would have chosen at every position of the answers.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from server.preparation.template import load_templates
from speculation.bench.prompts import load_data_sets
from workers.model.checkpoint import Checkpoint
from workers.model.shard import Shard
from workers.prepare.prepare import prepare
from workers.shared.model_files.facts import read_facts
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import EMBEDDING, HEAD
from workers.shared.packed.rounding import Rounding

_CPU = torch.device("cpu")
_ROWS = 16  # a frame of so many tokens has the bits of one a token
_SCHEMES: dict[str, Rounding | None] = {
    "as the file packs them": None,
    "int8": Rounding("int8", 64),
    "int4, groups of 32": Rounding("int4", 32),
    "int4, groups of 64": Rounding("int4", 64),
    "int4, groups of 128": Rounding("int4", 128),
}


class Answered(NamedTuple):
    """A prompt and the answer to it, and the logits after each token but those of the prompt."""

    prompt: list[int]
    answer: list[int]
    logits: Tensor  # [answer, vocabulary]


def main() -> None:
    """Prints a line a scheme."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="folder with .jsonl files")
    parser.add_argument("--limit", type=int, default=3, help="prompts of each file")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    packed = prepare("default")
    with tempfile.TemporaryDirectory() as name:
        plain = write_unpacked(packed, Path(name) / "plain", None)
        shard = _shard(plain, None)
        texts = [p.text for data in load_data_sets(options.prompts, options.limit, 0) for p in data.prompts]
        original = [_answered(shard, prompt, options.tokens) for prompt in _encoded(packed, texts)]
        print(f"{len(original)} prompts, {sum(len(one.answer) for one in original)} tokens")
        for scheme, rounding in _SCHEMES.items():
            source = packed if rounding is None else plain
            found = _read(_shard(source, rounding), original)
            held = plain if rounding is None else write_unpacked(plain, Path(name) / "held", rounding)
            twin = _read(_shard(held, None), original)
            _tell(scheme, original, found, twin)
            if held != plain:
                shutil.rmtree(held)


def write_unpacked(source: Path, folder: Path, rounding: Rounding | None) -> Path:
    """The model in `source` in float32, with the weights that a stage would hold."""
    folder.mkdir()
    stored, held = Checkpoint(source), Checkpoint(source, rounding)
    tensors = {name: (stored if name == EMBEDDING else held).tensor(name).float() for name in stored.entries}
    if HEAD not in tensors:
        tensors[HEAD] = held.tensor(EMBEDDING).float()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = read_json(source / "config.json") | {"packed_tensors": None, "tie_word_embeddings": False}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    return folder


def _shard(folder: Path, rounding: Rounding | None) -> Shard:
    layers = range(read_facts(folder).num_hidden_layers)
    options = {"dtype": torch.float32, "device": _CPU, "max_len": 2048, "sequences": 1, "rounding": rounding}
    return Shard.load(folder, layers, first=True, last=True, **options)


def _encoded(folder: Path, texts: Sequence[str]) -> Iterator[list[int]]:
    template = load_templates(folder)["default"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in texts:
        messages = [{"role": "user", "content": text}]
        rendered = template.render(messages, add_generation_prompt=True, extra={})
        yield tokenizer.encode(rendered, add_special_tokens=False).ids


def _answered(shard: Shard, prompt: list[int], count: int) -> Answered:
    hidden = _prefilled(shard, prompt)
    answer: list[int] = []
    logits = [shard.logits(hidden)]
    for _ in range(count):
        answer.append(int(logits[-1].argmax()))
        logits.append(shard.logits(shard.forward(0, len(prompt) + len(answer) - 1, answer[-1:], None)))
    return Answered(prompt, answer, torch.stack(logits[:-1]))


def _read(shard: Shard, original: Sequence[Answered]) -> list[Tensor]:
    """The logits of `shard` after the same tokens."""
    found = []
    for one in original:
        rows = [shard.row_logits(_prefilled(shard, one.prompt)[-1:])]
        for start in range(0, len(one.answer) - 1, _ROWS):
            tokens = one.answer[start : min(start + _ROWS, len(one.answer) - 1)]
            rows.append(shard.row_logits(shard.forward(0, len(one.prompt) + start, tokens, None)))
        found.append(torch.cat(rows))
    return found


def _prefilled(shard: Shard, prompt: Sequence[int]) -> Tensor:
    for start in range(0, len(prompt), 128):
        hidden = shard.forward(0, start, prompt[start : start + 128], None)
    return hidden


def _tell(scheme: str, original: Sequence[Answered], found: Sequence[Tensor], twin: Sequence[Tensor]) -> None:
    expected = torch.cat([one.logits for one in original])
    held, logits = torch.cat(list(twin)), torch.cat(list(found))
    answers = torch.cat([torch.tensor(one.answer) for one in original])
    same = logits.argmax(-1) == answers
    pairs = [(one.argmax(-1), torch.tensor(other.answer)) for one, other in zip(found, original, strict=True)]
    firsts = [int((one == other).int().cumprod(0).sum()) for one, other in pairs]
    print(
        f"{scheme}: product {_distance(logits, held):.2%}, scheme and product {_distance(logits, expected):.2%}; "
        f"the same token at {same.float().mean():.1%} of positions, answers part after {sorted(firsts)} tokens",
        flush=True,
    )


def _distance(found: Tensor, expected: Tensor) -> float:
    """Relative error of logits around their mean, which no choice depends on."""
    found, expected = (logits - logits.mean(-1, keepdim=True) for logits in (found, expected))
    return float((found - expected).norm() / expected.norm())


if __name__ == "__main__":
    main()

"""`python -m speculation.training.distill MODEL --out DIR`: the target's own answers, to train a draft module on."""

import hashlib
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from tqdm import tqdm

from speculation.pdm.replacing import replace_bytes
from speculation.training.examples.data import Record, data_hash
from speculation.training.examples.prompts import pre_query, read_prompts, render, usable_instruction
from speculation.training.interruption import EXIT_INTERRUPTED, Interrupted, StopSignals
from speculation.training.options import DISTILL_PROGRAM, DistillOptions
from speculation.training.parallel import local_device
from speculation.training.teacher import load_target, load_tokenizer
from workers.shared.errors import ConfigError
from workers.shared.model_files.digest import read_digest
from workers.shared.options.sources import read

_TRIES = 20  # batches of made-up instructions without a usable one before giving up


class Writer:
    """Generates with the target. Each batch has its own random seed, so that a resumed run repeats it."""

    def __init__(self, model: Any, tokenizer: Any, *, batch: int, max_tokens: int, top_k: int, seed: int) -> None:
        """`model` is the target, `tokenizer` its own; `top_k` limits sampling (0: no limit)."""
        self._model = model
        self._tokenizer = tokenizer
        self._batch = batch
        self._max_tokens = max_tokens
        self._top_k = top_k
        self._seed = seed
        tokenizer.padding_side = "left"
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token_id = tokenizer.eos_token_id
        ends = model.generation_config.eos_token_id
        known = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        self._ends = {*known, tokenizer.eos_token_id}

    def answers(self, prompts: Sequence[str], temperature: float, label: str) -> list[list[int]]:
        """Answer token ids, the end token included where there is one."""
        texts = [render(self._tokenizer, prompt) for prompt in prompts]
        return self._generate(texts, temperature, self._max_tokens, label)

    def instructions(self, label: str) -> list[str]:
        """A batch of instructions that the model makes up; some or all may be unusable and are left out."""
        texts = [pre_query(self._tokenizer)] * self._batch
        written = self._generate(texts, 1.0, 200, label)
        # One that was cut off in the middle is no instruction.
        finished = [ids[:-1] for ids in written if ids and ids[-1] in self._ends]
        decoded = [usable_instruction(self._tokenizer.decode(ids, skip_special_tokens=True)) for ids in finished]
        return [instruction for instruction in decoded if instruction is not None]

    @torch.inference_mode()
    def _generate(self, texts: Sequence[str], temperature: float, max_tokens: int, label: str) -> list[list[int]]:
        torch.manual_seed(random.Random(f"{self._seed} {label}").getrandbits(63))
        inputs = self._tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=False)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": self._top_k, "top_p": 1.0}
        output = self._model.generate(
            **inputs.to(self._model.device),
            max_new_tokens=max_tokens,
            eos_token_id=sorted(self._ends),
            pad_token_id=self._tokenizer.pad_token_id,
            **(sampling if temperature > 0 else {"do_sample": False}),
        )
        rows: list[list[int]] = output[:, inputs["input_ids"].shape[1] :].tolist()
        return [_until_end(row, self._ends) for row in rows]


def _until_end(ids: Sequence[int], ends: set[int]) -> list[int]:
    length = next((index + 1 for index, token in enumerate(ids) if token in ends), len(ids))
    return list(ids[:length])


def made_up(writer: Writer, first_batch: int) -> Iterator[list[str]]:
    """Endless batches of made-up instructions; batch i is the same in every run. Raises `ConfigError` in the end."""
    empty, number = 0, first_batch
    while empty < _TRIES:
        found = writer.instructions(f"instructions {number}")
        empty = 0 if found else empty + 1
        number += 1
        yield found
    raise ConfigError("the model writes no usable instructions after its chat template; give prompts with --prompts")


def batches_of_prompts(prompts: Sequence[str] | None, writer: Writer, batch: int, first: int) -> Iterator[list[str]]:
    """Batches of `prompts`, or of made-up ones without any, from batch `first` on."""
    if prompts is None:
        yield from made_up(writer, first)
        return
    for start in range(first * batch, len(prompts), batch):
        yield list(prompts[start : start + batch])


class _State(msgspec.Struct):
    """How far a run got: batches written and the size of the output after them."""

    settings: dict[str, Any]
    batches: int = 0
    bytes: int = 0
    records: int = 0


def distill(options: DistillOptions) -> None:
    """Runs the command line; goes on where an earlier run was interrupted."""
    device = local_device(options.device)
    prompts = None if options.prompts is None else read_prompts(options.prompts)
    tokenizer = load_tokenizer(options.model)
    out, state_file = options.out / f"{options.output_name}.jsonl", options.out / f"{options.output_name}.state.json"
    state = _earlier_state(out, state_file, _settings(options, tokenizer))
    model = load_target(options.model, getattr(torch, options.dtype), device)
    writer = Writer(
        model,
        tokenizer,
        batch=options.batch,
        max_tokens=options.max_tokens,
        top_k=options.top_k,
        seed=options.seed,
    )
    source = "magpie" if options.prompts is None else options.prompts.stem
    batches = batches_of_prompts(prompts, writer, options.batch, state.batches)
    options.out.mkdir(parents=True, exist_ok=True)
    with out.open("ab") as file, tqdm(total=options.count, initial=state.records, unit="answer") as bar:
        # Whatever a killed run wrote after its last complete batch is written again.
        file.truncate(state.bytes)
        while state.records < options.count and (batch := next(batches, None)) is not None:
            for temperature in options.temperature:
                answers = writer.answers(batch, temperature, f"answers {state.batches}") if batch else []
                for prompt, ids in zip(batch, answers, strict=True):
                    text = str(tokenizer.decode(ids, skip_special_tokens=True))
                    file.write(msgspec.json.encode(Record(prompt, text, ids, temperature, source)) + b"\n")
                state.records += len(answers)
                bar.update(len(answers))
            file.flush()
            state.batches += 1
            state.bytes = file.tell()
            replace_bytes(state_file, msgspec.json.encode(state))


def _settings(options: DistillOptions, tokenizer: Any) -> dict[str, Any]:
    """Everything that decides what is written: a run goes on only with the same."""
    return {
        "model": msgspec.to_builtins(read_digest(options.model)),
        "dtype": options.dtype,
        "chat_template": hashlib.sha256(render(tokenizer, "").encode()).hexdigest(),
        "prompts": data_hash([options.prompts]) if options.prompts else None,
        "temperatures": list(options.temperature),
        "batch": options.batch,
        "max_tokens": options.max_tokens,
        "top_k": options.top_k,
        "seed": options.seed,
    }


def _earlier_state(out: Path, state_file: Path, settings: dict[str, Any]) -> _State:
    """Where a run with these settings stands.

    Raises `ConfigError` where `out` belongs to another run, or to none, or is not what the state says.
    """
    if not state_file.exists():
        if out.exists():
            raise ConfigError(f"{out}: exists, with no {state_file.name} to go on from; choose another --output-name")
        return _State(settings)
    try:
        state = msgspec.json.decode(state_file.read_bytes(), type=_State)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{state_file}: {error}; choose another --output-name") from error
    names = settings.keys() | state.settings.keys()
    if changed := sorted(name for name in names if state.settings.get(name) != settings.get(name)):
        raise ConfigError(
            f"{state_file}: was made with other settings ({', '.join(changed)}); choose another --output-name"
        )
    if not out.exists() or out.stat().st_size < state.bytes:
        raise ConfigError(f"{out}: has less than {state_file.name} says; choose another --output-name")
    return state


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: complete; 1: bad input; 3: stopped by a signal, run again to go on."""
    StopSignals().install()
    try:
        distill(read(DISTILL_PROGRAM, sys.argv[1:] if arguments is None else arguments, os.environ))
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except Interrupted:
        sys.stderr.write("interrupted: run the same command again to go on\n")
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())

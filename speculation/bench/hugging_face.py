"""`python -m speculation.bench.hugging_face MODEL`: Hugging Face `generate` as a baseline.

Reads questions and writes answers, one line of JSON each, on stdin and stdout; the first line it writes says "ready".
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoTokenizer, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from speculation.bench.analysis.cells import Answer
from speculation.bench.contenders.hugging_face import GenerateQuestion
from speculation.bench.prompts import chat_ids
from workers.model.reference import load_reference
from workers.prepare.prepare import prepare
from workers.shared.lifecycle import die_with_parent


class Clock(BaseStreamer):
    """Notes when each token came; the first call brings the prompt."""

    def __init__(self) -> None:
        self.started_ns = time.perf_counter_ns()
        self.times_us: list[int] = []
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with each new token."""
        if not self._prompt:
            self.times_us.append((time.perf_counter_ns() - self.started_ns) // 1000)
        self._prompt = False

    def end(self) -> None:
        """Nothing is left to do."""


class Baseline:
    """The whole model on one device."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str) -> None:
        self._device = device
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = load_reference(folder, dtype)
        self._model = model.to(device).eval()
        defaults = self._model.generation_config
        self._end, self._pad = defaults.eos_token_id, defaults.pad_token_id
        # What the model suggests for sampling would otherwise be merged into what is asked for.
        self._model.generation_config = _generation_config()

    def answer(self, question: GenerateQuestion) -> Answer:
        """Generates with the model's chat template and end tokens."""
        clock = Clock()
        prompt = self._prompt(question)
        torch.manual_seed(question.seed)
        with torch.inference_mode():
            output = self._model.generate(prompt, generation_config=self._config(question), streamer=clock)
        length = prompt.shape[1]
        ids = output[0].tolist()
        return Answer(question.question, ids[:length], ids[length:], clock.times_us)

    def answers(self, questions: Sequence[GenerateQuestion]) -> list[Answer]:
        """The same for several questions at once, by continuous batching; all share what the first says of sampling."""
        began = time.perf_counter()
        inputs = [self._prompt(question)[0].tolist() for question in questions]
        torch.manual_seed(questions[0].seed)
        config = self._config(questions[0])
        outputs = self._model.generate_batch(
            inputs, generation_config=config, record_timestamps=True, persistent_manager=True
        )
        answers = []
        for question, prompt, output in zip(questions, inputs, outputs.values(), strict=True):
            times = [int((moment - began) * 1e6) for moment in output.timestamps]
            answers.append(Answer(question.question, prompt, output.generated_tokens, times))
        return answers

    def _prompt(self, question: GenerateQuestion) -> torch.Tensor:
        """Token ids `[1, T]`."""
        return torch.tensor([chat_ids(self._tokenizer, question.text)], device=self._device)

    def _config(self, question: GenerateQuestion) -> GenerationConfig:
        sampled = question.temperature > 0
        shape: dict[str, Any] = {}
        if sampled:
            shape = {"temperature": question.temperature, "top_k": question.top_k, "top_p": question.top_p}
        return _generation_config(
            max_new_tokens=question.max_tokens,
            do_sample=sampled,
            eos_token_id=None if question.ignore_eos else self._end,
            pad_token_id=self._pad if self._pad is not None else 0,
            **shape,
        )


def _generation_config(**fields: Any) -> GenerationConfig:
    config_class: Any = GenerationConfig  # its constructor has no types
    config: GenerationConfig = config_class(**fields)
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers until stdin ends."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m speculation.bench.hugging_face")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = "cpu" if options.device == "cpu" else options.device.partition(",")[0]
    dtype = options.dtype if options.dtype != "auto" else ("float32" if device == "cpu" else "bfloat16")
    baseline = Baseline(prepare(options.model), getattr(torch, dtype), device)
    decoder: msgspec.json.Decoder[GenerateQuestion | list[GenerateQuestion]] = msgspec.json.Decoder(
        GenerateQuestion | list[GenerateQuestion]
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        asked = decoder.decode(line)
        answer = baseline.answers(asked) if isinstance(asked, list) else baseline.answer(asked)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

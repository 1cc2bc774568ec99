"""`make gpu-check`: what there is to say of one card, in one go, written to docs/gpu.md. A few minutes.

All stages run in this process, so one card will do. Without a card every line of the page says "not run".
`python -m tests.gpu.check --device cpu` tries the same code on a small model, and only prints the page.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from speculation.drafters.none import NoDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from tests.harness import LocalEngine, local_engine
from tests.model.rerun import Rerun
from workers.decisions.split import balance
from workers.model.captured_shard import CapturedShard
from workers.model.recorder import CudaGraphs, Recorder
from workers.model.reference import load_reference
from workers.model.shard import Shard
from workers.shared.model_files.tensor_sizes import layer_bytes
from workers.stage.parts import Layers

_PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
_COMMAND = "make gpu-check"
_HEAD = f"""# On a GPU

Written by `{_COMMAND}` (`tests/gpu/check.py`), which needs one CUDA device. "Not run" means what it says.

| what | result |
| --- | --- |
"""
_PROMPT = list(range(40, 72))
_LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "vocab_size": 32000}  # 1.1 B
_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "vocab_size": 300}
_POSITION = 512  # of the frames whose time is told
_ROWS = (1, 2, 4, 8, 16)
_WARM_UP, _ROUNDS = 5, 30
_FRAMES = {"recorded frames": {}, "recorded and fused": {"fuse_layers": True}, "eager": {"enforce_eager": True}}
_PAUSE, _PAUSES = 2.0, 5  # seconds; times

Check = Callable[[], str]


class Checks:
    """What is checked, on one device, with one random model."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype, new: int) -> None:
        """`folder` holds the model; answers have `new` tokens."""
        self._folder = folder
        self._device = device
        self._dtype = dtype
        self._new = new
        self._layers, self._head = layer_bytes(folder)

    def all(self) -> dict[str, Check]:
        """By what the page says of it, in its order."""
        checks: dict[str, Check] = {"tests/gpu: identity of tokens and logits with every drafter": self.identity}
        for stages in (1, 2, 4):
            for how, settings in _FRAMES.items():
                for right in (False, True):
                    name = f"{stages} stage(s) in one process, {how}, {'every draft right' if right else 'plain'}"
                    checks[name] = lambda n=stages, r=right, s=settings: self.speed(n, right=r, settings=s)  # type: ignore[misc]
        for seconds in (0, 60):
            name = f"first tokens after a pause of {_PAUSE:g} s, `--keep-warm {seconds}`"
            checks[name] = lambda s=seconds: self.after_pauses(s)  # type: ignore[misc]
        checks["c(k): a frame of k tokens through all layers, in times of one token"] = self.wide_frames
        checks["the same, recorded"] = lambda: self.wide_frames(self._recorder())
        checks["Hugging Face `generate`"] = lambda: self.hugging_face(None)
        checks["Hugging Face `generate`, static cache and compiled"] = lambda: self.hugging_face("static")
        return checks

    def identity(self) -> str:
        """The tests of one card."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=_PAGE.parents[1], check=False)
        return done.stdout.strip().splitlines()[-1]

    def after_pauses(self, keep_warm: int) -> str:
        """Milliseconds to the first token of answers that nothing came before for some time."""
        times = []
        with self._engine(1, {"keep_warm": keep_warm}) as engine:
            engine.drafting.use(NoDrafter())
            for _ in range(_PAUSES):
                time.sleep(_PAUSE)
                started = time.perf_counter()
                engine.client.generate(_PROMPT, 1)
                times.append(1000 * (time.perf_counter() - started))
        return ", ".join(f"{ms:.2f}" for ms in times) + " ms"

    def speed(self, stages: int, *, right: bool, settings: Mapping[str, bool]) -> str:
        """Tokens a second, and where the slowest stage's time goes."""
        with self._engine(stages, settings) as engine:
            engine.drafting.use(NoDrafter())
            plain = engine.client.generate(_PROMPT, self._new).tokens
            if right:
                engine.drafting.use(ScriptedDrafter(Script([Recording(_PROMPT + plain)]), engine.vocab_size))
            before, started = engine.client.status(), time.perf_counter()
            answer = engine.client.generate(_PROMPT, self._new)
            seconds, after = time.perf_counter() - started, engine.client.status()
        frames = max(1, after.stages[-1].frames - before.stages[-1].frames)
        phases = {
            name: max(
                (getattr(new, f"{name}_ns") - getattr(old, f"{name}_ns")) / frames / 1e6
                for old, new in zip(before.stages, after.stages, strict=True)
            )
            for name in ("forward", "sample", "receive", "send", "idle")
        }
        told = ", ".join(f"{name} {value:.3f}" for name, value in phases.items())
        same = "same tokens" if answer.tokens == plain else "TOKENS DIFFER"
        return f"{self._new / seconds:.1f} tok/s, {same}; most of any stage, ms a frame: {told}"

    def wide_frames(self, recorder: Recorder | None = None) -> str:
        """Times of frames of 1 to 16 tokens."""
        loaded = Shard.load(
            self._folder,
            range(len(self._layers)),
            first=True,
            last=True,
            dtype=self._dtype,
            device=torch.device(self._device),
            max_len=2 * _POSITION,
            sequences=1,
        )
        shard: Layers = loaded if recorder is None else CapturedShard(loaded, recorder, _ROWS)
        times = {rows: self._median_ms(lambda n=rows: shard.forward(0, _POSITION, [1] * n, None)) for rows in _ROWS}  # type: ignore[misc]
        told = ", ".join(f"c({rows}) = {ms / times[1]:.2f}" for rows, ms in times.items())
        return f"{told}; one token {times[1]:.3f} ms"

    def hugging_face(self, cache: str | None) -> str:
        """Tokens a second of `generate` in a loop of its own."""
        model = load_reference(self._folder, self._dtype).to(self._device)  # type: ignore[arg-type]
        prompt = torch.tensor([_PROMPT], device=self._device)
        length = {"max_new_tokens": self._new, "min_new_tokens": self._new, "do_sample": False, "pad_token_id": 0}
        if cache is not None:
            length |= {"cache_implementation": cache}
        model.generate(prompt, **length)  # type: ignore[operator]
        started = time.perf_counter()
        model.generate(prompt, **length)  # type: ignore[operator]
        return f"{self._new / (time.perf_counter() - started):.1f} tok/s"

    def _recorder(self) -> Recorder:
        return Rerun() if self._device == "cpu" else CudaGraphs(torch.device(self._device), Lock())

    def _median_ms(self, work: Callable[[], object]) -> float:
        times = []
        for _ in range(_WARM_UP + _ROUNDS):
            started = time.perf_counter()
            work()
            if self._device != "cpu":
                torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - started))
        return statistics.median(times[_WARM_UP:])

    @contextmanager
    def _engine(self, stages: int, settings: Mapping[str, bool | int]) -> Iterator[LocalEngine]:
        split = balance(self._layers, self._head, stages)
        dtype = str(self._dtype).removeprefix("torch.")
        with local_engine(
            self._folder, split, devices=(self._device,), dtype=dtype, max_model_len=1024, **settings
        ) as engine:
            yield engine


def page(checks: dict[str, Check], *, run: bool) -> str:
    """The page, a line a check; what fails is told in its line."""
    lines = []
    for name, check in checks.items():
        try:
            result = check() if run else "not run"
        except Exception as error:  # noqa: BLE001 -- the page says what, and the next check is tried
            result = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        lines.append(f"| {name} | {result} |")
    return _HEAD + "\n".join(lines) + "\n"


def write_random_model(folder: Path, shape: dict[str, int], dtype: torch.dtype) -> None:
    """A Llama of this shape with random weights."""
    torch.manual_seed(1)
    heads = {
        "num_attention_heads": shape["hidden_size"] // 64,
        "num_key_value_heads": max(1, shape["hidden_size"] // 256),
    }
    config = LlamaConfig(**shape, **heads, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page, or prints it for a CPU."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    device = parser.parse_args(arguments).device
    on_card = device != "cpu"
    run = not on_card or torch.cuda.is_available()
    dtype = torch.bfloat16 if on_card else torch.float32
    with tempfile.TemporaryDirectory() as name:
        write_random_model(Path(name), _LARGE if on_card and run else _SMALL, dtype)
        text = page(Checks(Path(name), device, dtype, 200 if on_card else 20).all(), run=run)
    if on_card and run:
        text += f"\n{torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}.\n"
    if on_card:
        _PAGE.write_text(text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Loads a draft module and makes drafters of it."""

from collections.abc import Callable
from pathlib import Path

import torch

from speculation.decisions.features import FeatureMap, RowRule
from speculation.drafters.combined import CombinedDrafter
from speculation.drafters.ngram import load as load_ngram
from speculation.drafters.pdm import PdmDrafter
from speculation.pdm.authors import read_authors
from speculation.pdm.checkpoint import load_module
from speculation.pdm.quantized import quantize
from speculation.pdm.runtime import DraftRuntime
from speculation.pdm.target import read_embedding, read_target_config
from workers.model.shard import available_bytes
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.memory import Need, check_fits, module_bytes
from workers.shared.progress import Progress
from workers.shared.time_slices import available_cores

_KINDS = {
    RowRule.IN_FLIGHT: "a draft module, for --drafter pdm or pdm+ngram",
    RowRule.EXIT: "an exit head, for --drafter exit",
}


def load(engine: EngineConfig, vocab_size: int, rows: RowRule = RowRule.IN_FLIGHT) -> Callable[[int], PdmDrafter]:
    """The configured draft module, or exit head, for the engine's model and split: `rows` says which is asked for.

    On a CPU that multiplies bfloat16 it has that dtype, on another CPU it is float32, and either way weights of eight
    bits where those are faster; elsewhere it has the engine's dtype.

    Raises `ConfigError` where it is the other of the two, belongs to another target, cannot be read, or does not fit
    into memory or to the split.
    """
    config = engine.drafter
    if config.module is None:
        raise ConfigError(f"--drafter {config.name} needs --draft-module PATH: no module is known for this model")
    path, model = Path(config.module), Path(engine.model)
    device = torch.device(config.device)
    dtype = _cpu_dtype() if device.type == "cpu" else getattr(torch, engine.dtype)
    need = Need("draft module", config.device, *module_bytes(path, engine), engine.max_num_seqs)
    check_fits([need], engine.max_model_len, available_bytes(device))
    torch.set_num_threads(config.threads)
    with Progress(f"draft module {path.name}: loading on {device}"):
        read = read_authors if path.suffix == ".pt" else load_module
        module = read(path, model, config.module_target)
        if module.config.rows is not rows:
            raise ConfigError(f"--drafter {config.name}: {path} is {_KINDS[module.config.rows]}, not {_KINDS[rows]}")
        module = module.to(device, dtype).eval().requires_grad_(False)
        module.streamline()
        if device.type == "cpu":
            quantize(module)
        embedding = read_embedding(model, read_target_config(model), dtype).to(device)
    FeatureMap(module.config.anchors, engine.split, rows).check_read()
    capacity = engine.max_model_len
    width, scratch, branches = engine.shapes[0].width, engine.scratch, engine.breadth > 1

    def made(slot: int) -> PdmDrafter:
        runtime = DraftRuntime(module, engine.split, capacity, width, scratch)
        return PdmDrafter(runtime, embedding, module, capacity, branches=branches)

    return made


def load_combined(engine: EngineConfig, vocab_size: int) -> Callable[[int], CombinedDrafter]:
    """The module beside n-gram lookup."""
    module, ngram = load(engine, vocab_size), load_ngram(engine, vocab_size)
    delays = _shares_cores(engine)
    return lambda slot: CombinedDrafter(module(slot), ngram(slot), module_delays_stages=delays)


def _shares_cores(engine: EngineConfig) -> bool:
    """Whether the draft module and the stages have fewer cores between them than threads."""
    if engine.drafter.device != "cpu" or engine.devices[0] != "cpu":
        return False
    return available_cores() < engine.stages * engine.threads + engine.drafter.threads


def _cpu_dtype() -> torch.dtype:
    """Half the bytes of float32, and with several rows a pass less time; slower where it has to be emulated."""
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.11 does not tell
    return torch.bfloat16 if capabilities.get("avx512_bf16") else torch.float32

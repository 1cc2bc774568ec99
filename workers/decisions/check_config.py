"""Whether a configuration can work at all: what launcher, `plan`, `check-config` and rank 0 ask before they start."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from workers.shared.config import EngineConfig
from workers.shared.drafters import DRAFTERS, names_of
from workers.shared.endpoints import is_local
from workers.shared.errors import ConfigError

_DEVICE = re.compile(r"cpu|cuda:\d+")


def check_config(config: EngineConfig) -> None:
    """Raises `ConfigError` with the flags that contradict each other and what to do; reads and starts nothing."""
    for rule in _RULES:
        for contradiction in rule(config):
            raise ConfigError(contradiction)


def _split(config: EngineConfig) -> Iterator[str]:
    split = ",".join(map(str, config.split))
    if not config.split:
        yield "--split: give the layers of at least one stage"
    elif min((*config.split[:-1], 1)) < 1 or config.split[-1] < 0:
        yield f"--split {split}: every stage needs at least 1 layer; only the last may have 0"
    ends = config.endpoints
    for name, addresses in (("control", ends.control), ("data", ends.data)):
        if len(addresses) != config.stages:
            yield f"endpoints.{name}: {len(addresses)} addresses for {config.stages} stages; give one a stage"


def _devices(config: EngineConfig) -> Iterator[str]:
    names = ",".join(config.devices)
    for name in (*config.devices, config.drafter.device):
        if not _DEVICE.fullmatch(name):
            yield f"--device {name!r}: expected cpu, cuda, or a list such as cuda:0,cuda:1"
    for name in config.drafter.cascade_devices:
        if not _DEVICE.fullmatch(name):
            yield f"--cascade-device {name!r}: expected cpu, or GPUs such as cuda:2,cuda:3"
    if len(config.drafter.cascade_devices) not in (0, 1, len(config.drafter.cascade)):
        yield (
            f"--cascade-device names {len(config.drafter.cascade_devices)} devices for {len(config.drafter.cascade)} "
            f"models; give one, or one a model"
        )
    if len(config.devices) not in (1, config.stages):
        yield f"--device names {len(config.devices)} devices for {config.stages} stages; give one, or one a stage"
    if len({name.partition(":")[0] for name in config.devices}) != 1:
        yield f"--device {names}: stages on CPUs and on GPUs cannot be mixed"
    if config.quantization is not None and config.devices[0] != "cpu":
        yield f"--quantization {config.quantization} is for --device cpu; on GPUs use a checkpoint that is quantised"
    if config.fuse_layers and config.enforce_eager:
        yield "--fuse-layers is for recorded frames, of which --enforce-eager makes none: leave one of them out"
    if config.max_model_len < 2:
        yield "--max-model-len must be at least 2: a prompt and an answer of one token"


def _memory(config: EngineConfig) -> Iterator[str]:
    total, longest = config.max_total_tokens, config.max_model_len
    if total and total < longest:
        yield (
            f"--max-total-tokens {total} must be at least --max-model-len, which is {longest}: the longest request "
            f"could never start"
        )
    if total and config.devices[0] != "cpu":
        yield "--max-total-tokens is for --device cpu: on GPUs every slot has its own memory; use fewer --max-num-seqs"


def _transport(config: EngineConfig) -> Iterator[str]:
    on_cpu = config.devices[0] == "cpu"
    places = Counter((_host(address), config.device(stage)) for stage, address in enumerate(config.endpoints.data))
    if config.transport == "nccl" and on_cpu:
        yield "--transport nccl needs --device cuda; on CPUs use zmq or gloo"
    elif config.transport == "nccl" and max(places.values()) > 1:
        shared = next(device for (_, device), stages in places.items() if stages > 1)
        yield (
            f"--transport nccl needs a GPU for each stage, but --device gives {shared} to several; use --transport "
            f"inprocess where all stages share one GPU, else zmq"
        )
    elif config.transport == "gloo" and not on_cpu:
        yield "--transport gloo is for --device cpu; on GPUs use nccl or zmq"
    elif config.transport == "inprocess" and len(set(config.devices)) > 1:
        yield (
            f"--transport inprocess keeps hidden states on one device, but --device names {len(set(config.devices))}; "
            f"use nccl or zmq"
        )
    if config.transport == "unix" and not all(map(is_local, config.endpoints.data)):
        yield "--transport unix is for stages of one host, with endpoints unix://FILE; between hosts use zmq"
    if config.transport in ("gloo", "nccl") and not config.endpoints.rendezvous:
        yield f"endpoints.rendezvous: --transport {config.transport} needs an address where its processes meet"


def _drafter(config: EngineConfig) -> Iterator[str]:
    drafter, drafts = config.drafter, config.drafter.num_speculative_tokens
    row = DRAFTERS[drafter.name]
    if drafts and config.delta:
        yield (
            f"--delta {config.delta}: with --num-speculative-tokens {drafts} one frame is in flight; leave out either"
        )
    if drafts and (config.tokens_per_frame != 1 or config.tree_width == "auto"):
        flag = "--tree-width auto" if config.tokens_per_frame == 1 else f"--tokens-per-frame {config.tokens_per_frame}"
        yield (
            f"{flag} is for frames in every stage, and with "
            f"--num-speculative-tokens {drafts} one frame is in flight; leave out either"
        )
    if config.exact and (config.frame_width > 1 or config.breadth > 1):
        yield (
            "--exact: frames of several tokens round otherwise than plain decoding; leave out --tokens-per-frame, "
            "--tree-width and --num-speculative-tokens"
        )
    if config.breadth > 1 and not row.branches:
        others = names_of(lambda row: row.has_opinion and row.branches)
        yield (
            f"--tree-width {config.tree_width}: --drafter {drafter.name} drafts behind one draft a position; use "
            f"{others}, or leave --tree-width out"
        )
    if drafts and not row.works_in_rounds:
        others = names_of(lambda row: row.has_opinion and row.works_in_rounds)
        yield (
            f"--drafter {drafter.name} reads hidden states of tokens in flight, and with --num-speculative-tokens "
            f"{drafts} none is in flight while drafts are made: use {others}, or leave "
            f"--num-speculative-tokens out"
        )
    if not drafts and config.frame_width > 1 and not row.fills_frames:
        yield (
            f"--tokens-per-frame {config.tokens_per_frame}: --drafter {drafter.name} drafts once stage 0 has computed "
            f"the token before, so its frames hold one; leave --tokens-per-frame out"
        )
    if drafter.ngram_min > drafter.ngram_max:
        yield f"--ngram-min {drafter.ngram_min} must be at most --ngram-max, which is {drafter.ngram_max}"
    if row.needs_model != (drafter.draft_model is not None):
        needing = names_of(lambda row: row.needs_model)
        yield (
            f"--drafter {needing} and --draft-model MODEL belong together: a small model with the vocabulary of the "
            f"target, or a draft head made for it"
        )
    if row.needs_cascade != bool(drafter.cascade):
        needing = names_of(lambda row: row.needs_cascade)
        yield (
            f"--drafter {needing} and --cascade SMALL[,MIDDLE...] belong together: small models with the vocabulary of "
            f"the target"
        )
    if row.needs_cascade and config.tokens_in_flight == 1:
        yield (
            "--cascade with a single stage and one token a frame has nothing in flight to draft for: give "
            "--tokens-per-frame M, or more stages"
        )
    if drafter.cascade_lookahead > drafter.cascade_lead:
        yield (
            f"--cascade-lookahead {drafter.cascade_lookahead} must be at most --cascade-lead, which is "
            f"{drafter.cascade_lead}: no model writes further ahead"
        )
    if row.needs_module and drafter.module is None:
        yield f"--drafter {drafter.name} needs --draft-module PATH: no module comes with Echelon for this model"
    if not row.needs_module and drafter.module is not None:
        yield f"--draft-module is for --drafter {names_of(lambda row: row.needs_module)}, not {drafter.name}"


def _rehearsal(config: EngineConfig) -> Iterator[str]:
    drafter, row = config.drafter, DRAFTERS[config.drafter.name]
    scripted = {"--script": drafter.script, "--scripted-acceptance": drafter.scripted_acceptance}
    given = [flag for flag, value in scripted.items() if value is not None]
    if given and not row.needs_script:
        yield f"{' and '.join(given)} is for --drafter {names_of(lambda row: row.needs_script)}"
    if row.needs_script and len(given) != 1:
        yield f"--drafter {drafter.name} needs either --script FILE or --scripted-acceptance P, not both"
    if config.hollow_stages and (config.devices[0] != "cpu" or row.has_opinion):
        silent = names_of(lambda row: not row.has_opinion)
        yield f"--hollow-stages is for --device cpu and --drafter {silent}: there is nothing to draft from"


def _host(address: str) -> str:
    """The host of a tcp address; other kinds of address are all on one host."""
    return address.rpartition(":")[0] if address.startswith("tcp://") else ""


_RULES: tuple[Callable[[EngineConfig], Iterator[str]], ...] = (
    _split,
    _devices,
    _memory,
    _drafter,
    _rehearsal,
    _transport,
)

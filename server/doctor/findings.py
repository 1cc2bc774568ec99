"""What follows from the facts. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from server.doctor.facts import Facts
from server.metrics.nvml import Device

_GIB = 1 << 30
_ENGINE = ("torch", "transformers", "safetensors", "gguf")
_LEAST_PYTHON = (3, 11)
_DEFAULT_MODEL_BYTES = 2 * _GIB  # memory that the default model takes with everything around it, generously
_DOWNLOAD_BYTES = _GIB // 2
_FILES = 1024
_BUSY = 0.5  # of the cores wanted by others
_SHARE = 0.85  # of a device's memory for weights and KV cache

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line, and what to do about it."""

    level: Level
    text: str
    remedy: str = ""


def findings(facts: Facts) -> list[Finding]:
    """Everything that is worth a line, in the order in which it is looked at."""
    return [*_software(facts), *_devices(facts), *_host(facts)]


def advice(facts: Facts) -> list[str]:
    """Commands that should work here."""
    usable = facts.torch.devices
    if usable:
        memory = [device.memory_total or 0 for device in facts.devices[:usable]]
        room = sum(memory) * _SHARE / _GIB
        told = f"{usable} device{'s' if usable > 1 else ''}, about {room:.0f} GiB for weights and KV cache together"
        lines = [f"{told}:", f"    echelon serve ORG/NAME --device cuda --stages {usable}"]
        if usable == 1:
            lines += ["one device has no pipeline; it drafts and verifies:"]
            lines += ["    echelon serve ORG/NAME --device cuda --stages 1 --num-speculative-tokens 4"]
        return lines
    stages = max(1, min(facts.cores, 4))
    return [
        f"{facts.cores} CPU core{'s' if facts.cores > 1 else ''} and {facts.memory_free / _GIB:.1f} GiB of memory, no "
        "device: small models, for a look:",
        f"    echelon serve --stages {stages}",
    ]


def _software(facts: Facts) -> Iterator[Finding]:
    here = ".".join(map(str, facts.python))
    if facts.python < _LEAST_PYTHON:
        yield Finding("problem", f"Python {here}", "3.11 or newer is needed")
    else:
        yield Finding("ok", f"Python {here}")
    missing = [name for name in _ENGINE if facts.packages.get(name) is None]
    if missing:
        yield Finding("problem", f"{', '.join(missing)} not installed", "pip install 'echelon[engine]'")
    elif facts.torch.trouble:
        yield Finding("problem", f"torch does not work: {facts.torch.trouble}", "install it anew")
    else:
        built = f"built for CUDA {facts.torch.cuda}" if facts.torch.cuda else "built without CUDA"
        yield Finding("ok", f"torch {facts.packages['torch']}, {built}")
    for name, use, extra in (
        ("opentelemetry-sdk", "--otlp-traces-endpoint", "otel"),
        ("matplotlib", "plots of `echelon bench`", "bench"),
    ):
        if facts.packages.get(name) is None:
            yield Finding("note", f"no {name}: no {use}", f"pip install 'echelon[{extra}]'")
    if facts.variables:
        yield Finding("note", f"options from the environment: {', '.join(facts.variables)}")


def _devices(facts: Facts) -> Iterator[Finding]:
    count = len(facts.devices)
    if not facts.driver:
        yield Finding("note", "no NVIDIA driver: stages run on CPUs")
    for device in facts.devices:
        memory = "" if device.memory_total is None else f", {device.memory_total / _GIB:.0f} GiB"
        yield Finding("ok", f"device {device.index}: {device.name}{memory}{_link(device)}")
        if device.memory_used and device.memory_total and device.memory_used > (1 - _SHARE) * device.memory_total:
            used = f"{device.memory_used / _GIB:.1f} GiB of device {device.index} in use"
            yield Finding("note", used, "by what? `nvidia-smi` says; it is missing for weights and KV cache")
    if count and facts.torch.cuda is None and not facts.torch.trouble and facts.packages.get("torch"):
        yield Finding("problem", "torch was built without CUDA, so no device can be used", "install torch for CUDA")
    elif count > facts.torch.devices and facts.packages.get("torch"):
        told = f"torch can use {facts.torch.devices} of {count} devices"
        yield Finding("problem" if not facts.torch.devices else "note", told, "see CUDA_VISIBLE_DEVICES and the driver")
    if facts.torch.apart:
        pairs = ", ".join(f"{a}-{b}" for a, b in facts.torch.apart)
        yield Finding(
            "note",
            f"devices without direct access to each other: {pairs}",
            "one hidden state a token goes through the host instead; that is enough here",
        )
    if len({device.name for device in facts.devices}) > 1:
        yield Finding(
            "note", "devices of several kinds", "the split is by bytes; give faster ones more layers with --split"
        )


def _host(facts: Facts) -> Iterator[Finding]:
    if facts.memory_free < _DEFAULT_MODEL_BYTES:
        text = f"{facts.memory_free / _GIB:.1f} GiB of {facts.memory / _GIB:.1f} GiB of memory free"
        yield Finding("problem", text, "the default model takes about 1 GiB in all; lower --max-num-seqs for others")
    else:
        yield Finding("ok", f"{facts.cores} cores, {facts.memory_free / _GIB:.1f} GiB of memory free")
    if facts.load > _BUSY * facts.cores:
        yield Finding(
            "note",
            f"the machine is busy: {facts.load:.1f} processes for {facts.cores} cores",
            "what is calibrated now will not hold later",
        )
    if facts.cache_free is None:
        yield Finding("problem", f"{facts.cache} cannot be written", "set ECHELON_CACHE to a folder that can")
    elif facts.cache_free < _DOWNLOAD_BYTES:
        yield Finding("problem", f"{facts.cache}: {facts.cache_free / _GIB:.1f} GiB free", "models are kept there")
    else:
        yield Finding("ok", f"models are kept in {facts.cache}, {facts.cache_free / _GIB:.0f} GiB free")
    if facts.open_files < _FILES:
        yield Finding("note", f"{facts.open_files} open files allowed", f"`ulimit -n {_FILES}`, for many connections")
    if facts.port_trouble:
        yield Finding("note", f"port {facts.port} is taken", "choose another with --port")


def _link(device: Device) -> str:
    if device.link is None or device.link_most is None:
        return ""
    generation, most = device.link_most
    now = device.link[1]
    return f", PCIe {generation}.0 x{most}" + (f" (x{now} now)" if now < most else "")


def shown(found: Sequence[Finding], width: int = 7) -> str:
    """As lines of text."""
    marks = {"ok": "ok", "note": "note", "problem": "PROBLEM"}
    lines = []
    for finding in found:
        lines.append(f"{marks[finding.level]:<{width}}  {finding.text}")
        if finding.remedy:
            lines.append(f"{'':<{width}}  -> {finding.remedy}")
    return "\n".join(lines)

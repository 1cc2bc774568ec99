"""What `echelon doctor` looks at. Looks only: nothing is started but a Python that imports torch."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from server.launcher.own_server import check_port_is_free
from server.metrics.nvml import Device, DeviceReader
from workers.shared.errors import ConfigError
from workers.shared.time_slices import available_cores

PACKAGES = ("torch", "transformers", "safetensors", "gguf", "nvidia-ml-py", "opentelemetry-sdk", "matplotlib")
_TORCH_SECONDS = 180
# Peers are pairs of devices that cannot reach each other's memory.
_ASK_TORCH = """
import json, torch
count = torch.cuda.device_count()
pairs = [(a, b) for a in range(count) for b in range(count) if a < b and not torch.cuda.can_device_access_peer(a, b)]
print(json.dumps({"cuda": torch.version.cuda, "devices": count, "apart": pairs}))
"""


@dataclass(frozen=True)
class Torch:
    """What torch says of itself."""

    cuda: str | None = None  # what it was built for
    devices: int = 0  # that it can use
    apart: Sequence[Sequence[int]] = ()  # pairs of these without access to each other's memory
    trouble: str = ""  # why it could not be asked


@dataclass(frozen=True)
class Facts:
    """Of this machine, now. Sizes in bytes."""

    python: tuple[int, int]
    packages: Mapping[str, str | None]
    torch: Torch
    driver: str  # NVIDIA's; empty: none
    devices: Sequence[Device]
    cores: int  # that this process may use
    load: float  # processes that want to run, the last minute's mean
    memory: int
    memory_free: int
    cache: str
    cache_free: int | None  # None: it cannot be written
    open_files: int
    port: int
    port_trouble: str = ""
    variables: Sequence[str] = field(default=())  # ECHELON_… that are set


def gather(port: int) -> Facts:
    """Looks at this machine; some seconds, for torch takes as long to be imported."""
    reader = DeviceReader.open()
    cache = Path(os.environ.get("ECHELON_CACHE") or "~/.cache/echelon").expanduser().absolute()
    memory = psutil.virtual_memory()  # by itself: the checks of memory need packages that may be what is missing
    packages = {name: _version(name) for name in PACKAGES}
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor),
        packages=packages,
        torch=Torch() if packages["torch"] is None else _torch(),
        driver=reader.driver,
        devices=reader.read(),
        cores=available_cores(),
        load=os.getloadavg()[0],
        memory=memory.total,
        memory_free=memory.available,
        cache=str(cache),
        cache_free=_free(cache),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        port=port,
        port_trouble=_port_trouble(port),
        variables=sorted(name for name in os.environ if name.startswith("ECHELON_")),
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch() -> Torch:
    command = [sys.executable, "-c", _ASK_TORCH]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TORCH_SECONDS)
        return Torch(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        return Torch(trouble=(error.stderr.strip().splitlines() or ["it says nothing"])[-1])
    except subprocess.TimeoutExpired:
        return Torch(trouble=f"it could not be imported within {_TORCH_SECONDS} s")


def _free(folder: Path) -> int | None:
    """Bytes free where `folder` is or would be; None where it could not be written."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free if there.is_dir() and os.access(there, os.W_OK) else None


def _port_trouble(port: int) -> str:
    try:
        check_port_is_free("127.0.0.1", port)
    except ConfigError as error:
        return str(error)
    return ""

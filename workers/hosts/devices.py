"""`python -m workers.hosts.devices [DEVICE ...]`: what this host has for stages, as JSON on standard output.

A program of its own, because it needs torch, unless it is only to tell of the CPU, and whoever joins does not.
"""

import sys
import time

import msgspec

from workers.shared.hosts.messages import Seat
from workers.shared.memory import available_host_bytes

_BYTES = 256 << 20  # of a matrix that no cache holds
_COLUMNS = 4096
_TIMES = 3


def describe(device: str, *, measure: bool) -> Seat:
    """Free memory of a device and, where asked for, bytes a second of weights in products of matrix and vector."""
    memory = available_host_bytes() if device == "cpu" else _free_bytes(device)
    return Seat(device, memory, _measure(device, min(_BYTES, memory // 4)) if measure else 0.0)


def _free_bytes(device: str) -> int:
    import torch  # seconds

    chosen = torch.device(device)
    return int(torch.cuda.mem_get_info(chosen)[0]) if chosen.type == "cuda" else available_host_bytes()


def _measure(name: str, size: int) -> float:
    import torch

    device = torch.device(name)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    rows = max(1, size // (_COLUMNS * dtype.itemsize))
    matrix = torch.ones(rows, _COLUMNS, dtype=dtype, device=device)
    vector = torch.ones(_COLUMNS, dtype=dtype, device=device)
    torch.set_num_threads(1)  # as stages have, unless told otherwise

    def once() -> float:
        started = time.perf_counter()
        torch.mv(matrix, vector)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    once()
    return matrix.numel() * dtype.itemsize / min(once() for _ in range(_TIMES))


def main() -> None:
    """Devices in the order given; without any, all GPUs, or the CPU."""
    measure = "--measure" in sys.argv[1:]
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    if not names:
        import torch

        names = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    sys.stdout.buffer.write(msgspec.json.encode([describe(name, measure=measure) for name in names]) + b"\n")


if __name__ == "__main__":
    main()

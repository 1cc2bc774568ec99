"""What the NVIDIA driver tells of the GPUs, without torch."""

import os
from collections.abc import Sequence

import pynvml

_CUDA = "cuda:"


def driver_names(gpus: Sequence[int], visible: str | None) -> list[str]:
    """An index, or a UUID, for each of `gpus`: what `visible` lists at that place.

    `visible` is the value of CUDA_VISIBLE_DEVICES, by which CUDA's indices differ from the driver's.
    """
    if not visible:
        return [str(gpu) for gpu in gpus]
    listed = [name.strip() for name in visible.split(",")]
    return [listed[gpu] for gpu in gpus if gpu < len(listed)]


def driver_handle(name: str) -> object:
    """The driver's handle of what `driver_names` has named."""
    if name.isdecimal():
        handle: object = pynvml.nvmlDeviceGetHandleByIndex(int(name))
    else:
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    return handle


def free_gpu_bytes(device: str) -> int | None:
    """Memory that is free on a device such as `cuda:1`; None where the driver does not tell."""
    try:
        pynvml.nvmlInit()
        names = driver_names([int(device.removeprefix(_CUDA))], os.environ.get("CUDA_VISIBLE_DEVICES"))
        return int(pynvml.nvmlDeviceGetMemoryInfo(driver_handle(names[0])).free) if names else None
    except pynvml.NVMLError:
        return None

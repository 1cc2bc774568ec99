"""Energy that GPUs have taken, as their driver counts it."""

from collections.abc import Sequence
from typing import Protocol

import pynvml


class Meter(Protocol):
    """Counts up."""

    def millijoules(self) -> int:
        """Energy of all its devices since some moment in the past."""


class NvmlMeter:
    """The NVIDIA driver's own counters; they move every few dozen milliseconds."""

    def __init__(self, handles: Sequence[object]) -> None:
        self._handles = handles

    def millijoules(self) -> int:
        """See `Meter`."""
        return sum(int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) for handle in self._handles)


def open_meter(gpus: Sequence[int], visible: str | None) -> Meter | None:
    """A meter of the GPUs with these CUDA indices; None where there are none, or where they do not report energy.

    `visible` is the value of CUDA_VISIBLE_DEVICES, by which CUDA's indices differ from the driver's.
    """
    if not gpus:
        return None
    try:
        pynvml.nvmlInit()
        meter = NvmlMeter([_handle(name) for name in driver_names(gpus, visible)])
        meter.millijoules()
    except pynvml.NVMLError:
        return None
    return meter


def driver_names(gpus: Sequence[int], visible: str | None) -> list[str]:
    """An index, or a UUID, for each of `gpus`: what `visible` lists at that place."""
    if not visible:
        return [str(gpu) for gpu in gpus]
    listed = [name.strip() for name in visible.split(",")]
    return [listed[gpu] for gpu in gpus if gpu < len(listed)]


def _handle(name: str) -> object:
    if name.isdecimal():
        handle: object = pynvml.nvmlDeviceGetHandleByIndex(int(name))
    else:
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    return handle

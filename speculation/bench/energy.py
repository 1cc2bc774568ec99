"""Energy that GPUs have taken, as their driver counts it."""

from collections.abc import Sequence
from typing import Protocol

import pynvml

from workers.shared.memory import driver_handle, driver_names


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
        meter = NvmlMeter([driver_handle(name) for name in driver_names(gpus, visible)])
        meter.millijoules()
    except pynvml.NVMLError:
        return None
    return meter

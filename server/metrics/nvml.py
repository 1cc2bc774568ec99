"""What NVIDIA's driver says of the devices of this host. Nothing, and no noise, where there is no driver."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

_KB = 1000
_MW = 1000


class Device(Struct, frozen=True, kw_only=True):
    """One device, now. None: it does not tell."""

    index: int
    name: str
    uuid: str
    memory_total: int | None = None  # bytes
    memory_used: int | None = None  # bytes, of all processes
    utilization: float | None = None  # share of the last second in which it computed
    temperature: float | None = None  # degrees Celsius
    power: float | None = None  # watts
    received: float | None = None  # bytes a second over PCIe
    sent: float | None = None
    link: tuple[int, int] | None = None  # generation and lanes of PCIe, now: an idle link is slow
    link_most: tuple[int, int] | None = None  # that device and slot could have


class DeviceReader:
    """Keeps the driver's library open. `library` is `pynvml`, or None where it is not installed."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._handles: list[Any] = []
        self.driver = ""  # its version; empty where there is none
        if library is None:
            return
        try:
            self._nvml.nvmlInit()
            self.driver = _text(self._nvml.nvmlSystemGetDriverVersion())
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        except self._nvml.NVMLError:
            self._handles = []

    @classmethod
    def open(cls) -> "DeviceReader":
        """Of this host."""
        try:
            import pynvml  # comes with the extra 'engine'
        except ImportError:
            return cls(None)
        return cls(pynvml)

    def __len__(self) -> int:
        return len(self._handles)

    def read(self) -> list[Device]:
        """All devices; some milliseconds each, so not for an event loop."""
        return [self._read(index, handle) for index, handle in enumerate(self._handles)]

    def _read(self, index: int, handle: Any) -> Device:
        nvml, ask = self._nvml, self._ask
        memory, busy = (
            ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle)),
            ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle)),
        )
        power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        received = ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES))
        sent = ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES))
        return Device(
            index=index,
            name=_text(ask(lambda: nvml.nvmlDeviceGetName(handle))),
            uuid=_text(ask(lambda: nvml.nvmlDeviceGetUUID(handle))),
            memory_total=None if memory is None else memory.total,
            memory_used=None if memory is None else memory.used,
            utilization=None if busy is None else busy.gpu / 100,
            temperature=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power=None if power is None else power / _MW,
            received=None if received is None else received * _KB,
            sent=None if sent is None else sent * _KB,
            link=self._link(handle, "Curr"),
            link_most=self._link(handle, "Max"),
        )

    def _link(self, handle: Any, which: str) -> tuple[int, int] | None:
        generation = self._ask(lambda: getattr(self._nvml, f"nvmlDeviceGet{which}PcieLinkGeneration")(handle))
        lanes = self._ask(lambda: getattr(self._nvml, f"nvmlDeviceGet{which}PcieLinkWidth")(handle))
        return None if generation is None or lanes is None else (generation, lanes)

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError:
            return None  # this device does not tell, or is lost


def _text(value: Any) -> str:
    """Older versions of the library give bytes."""
    return value.decode() if isinstance(value, bytes) else str(value or "")

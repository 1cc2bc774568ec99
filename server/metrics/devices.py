"""Prometheus metrics of the devices of the API server's host, as read last."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.metrics.nvml import Device, DeviceReader

_GAUGES = {
    "utilization": ("device_utilization_ratio", "Share of the last second in which the device computed"),
    "memory_used": ("device_memory_used_bytes", "Memory of the device in use, by whomever"),
    "memory_total": ("device_memory_total_bytes", "Memory of the device"),
    "temperature": ("device_temperature_celsius", "Temperature of the device"),
    "power": ("device_power_watts", "Power that the device draws"),
}
_LABELS = ("device", "device_name")


class DeviceCollector(Collector):
    """Nothing at all where there is no device."""

    def __init__(self, reader: DeviceReader) -> None:
        self._reader = reader
        self._devices: Sequence[Device] = ()

    @property
    def wanted(self) -> bool:
        """Whether there is anything to refresh."""
        return len(self._reader) > 0

    def refresh(self) -> None:
        """Reads the devices; to be called outside of the event loop, before they are collected."""
        self.show(self._reader.read())

    def show(self, devices: Sequence[Device]) -> None:
        """These are to be collected."""
        self._devices = devices

    def collect(self) -> Iterable[Metric]:
        """What was read last."""
        if not self._devices:
            return
        for field, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"echelon:{name}", text, labels=_LABELS)
            for device in self._devices:
                if (value := getattr(device, field)) is not None:
                    gauge.add_metric([str(device.index), device.name], value)
            yield gauge
        link = GaugeMetricFamily(
            "echelon:device_link_bytes_per_second", "Bytes over PCIe", labels=[*_LABELS, "direction"]
        )
        for device in self._devices:
            for direction, value in (("received", device.received), ("sent", device.sent)):
                if value is not None:
                    link.add_metric([str(device.index), device.name, direction], value)
        yield link

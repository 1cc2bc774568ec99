"""Metrics of devices from a driver that is made up, and none where there is none."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from server.metrics.devices import DeviceCollector
from server.metrics.nvml import DeviceReader


class NoSuchThing(Exception):
    """As the library raises where something cannot be told."""


def library(**replaced: Any) -> Any:
    """What `pynvml` offers, of two devices."""

    def refuse(*_: object) -> None:
        raise NoSuchThing

    offered = {
        "NVMLError": NoSuchThing,
        "NVML_PCIE_UTIL_RX_BYTES": 1,
        "NVML_PCIE_UTIL_TX_BYTES": 0,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"590.1",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: f"Card {handle}",
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=24_000, used=6_000 + handle),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=75, memory=10),
        "nvmlDeviceGetTemperature": lambda handle, sensor: 60 + handle,
        "nvmlDeviceGetPowerUsage": refuse,
        "nvmlDeviceGetPcieThroughput": lambda handle, counter: 1000 * (counter + 1),
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 4,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 8,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 4,
        "nvmlDeviceGetMaxPcieLinkWidth": refuse,
    }
    return SimpleNamespace(**(offered | replaced))


def exposed(reader: DeviceReader) -> str:
    registry, collector = CollectorRegistry(), DeviceCollector(reader)
    registry.register(collector)
    collector.refresh()
    return generate_latest(registry).decode()


def test_devices_are_told_as_far_as_they_tell() -> None:
    reader = DeviceReader(library())
    assert (reader.driver, len(reader)) == ("590.1", 2)
    text = exposed(reader)
    assert 'echelon:device_utilization_ratio{device="1",device_name="Card 1"} 0.75' in text
    assert 'echelon:device_memory_used_bytes{device="1",device_name="Card 1"} 6001.0' in text
    assert 'echelon:device_link_bytes_per_second{device="0",device_name="Card 0",direction="received"} 2e+06' in text
    assert "echelon:device_power_watts{" not in text, "refused by the driver"
    first = reader.read()[0]
    assert (first.link, first.link_most) == ((4, 8), None)


def test_without_a_library_a_driver_or_a_device_there_is_nothing() -> None:
    def broken() -> None:
        raise NoSuchThing

    for reader in (
        DeviceReader(None),
        DeviceReader(library(nvmlInit=broken)),
        DeviceReader(library(nvmlDeviceGetCount=lambda: 0)),
    ):
        assert len(reader) == 0
        assert not DeviceCollector(reader).wanted
        assert exposed(reader) == ""

"""GET /health, /live, /ready, /metrics, /status and /version: what operators and their tools read."""

import asyncio
from importlib.metadata import PackageNotFoundError, version

import msgspec
from fastapi import APIRouter
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import JSONResponse, Response

from server.metrics.devices import DeviceCollector
from server.metrics.labelled import Labelled
from server.metrics.nvml import DeviceReader
from server.metrics.vllm_names import VllmNames
from server.service import Service, engine_errors


def operations_router(service: Service) -> APIRouter:
    """The routes over `service`."""
    router = APIRouter()
    devices = DeviceCollector(DeviceReader.open())
    service.metrics.registry.register(devices)
    labelled = Labelled(service.metrics.registry, service.settings.served_model_name)
    exposed: Collector = VllmNames(labelled) if service.settings.metrics_alias == "vllm" else labelled

    @router.get("/health")
    @router.get("/ready")
    async def ready() -> Response:
        with engine_errors():
            info = service.engine.ready_info
        return JSONResponse({"status": "ok", "stages": info.stages, "rehearsal": info.rehearsal})

    @router.get("/live")
    async def live() -> Response:
        return JSONResponse({"status": "ok"})

    @router.get("/metrics")
    async def metrics() -> Response:
        if devices.wanted:
            await asyncio.to_thread(devices.refresh)
        return Response(generate_latest(exposed), media_type=CONTENT_TYPE_LATEST)

    @router.get("/status")
    async def status() -> Response:
        with engine_errors():
            found = service.engine.status
        return Response(msgspec.json.encode(found), media_type="application/json")

    @router.get("/version")
    async def show_version() -> Response:
        return JSONResponse({"version": _version()})

    return router


def _version() -> str:
    try:
        return version("echelon")
    except PackageNotFoundError:
        return "unknown"  # run from a checkout that was never installed

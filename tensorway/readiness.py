"""Waiting until started processes answer."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tensorway.channels import Dialer
from tensorway.launches import Launch
from tensorway.v1 import model_pb2, model_pb2_grpc

POLL_SECONDS = 0.2
TRY_SECONDS = 2.0

Ready = Callable[[str], None]


async def ready(launches: Iterable[Launch], router: str, dialer: Dialer, tell: Ready) -> None:
    """Return once every process is ready; `tell` gets each one's name as it becomes so."""
    launches = tuple(launches)
    async with asyncio.TaskGroup() as tasks:
        for launch in launches:
            tasks.create_task(_wait(launch, router, dialer, tell))


async def _wait(launch: Launch, router: str, dialer: Dialer, tell: Ready) -> None:
    while not await _is_ready(launch, router, dialer):  # noqa: ASYNC110, it is elsewhere
        await asyncio.sleep(POLL_SECONDS)
    tell(launch.name)


async def _is_ready(launch: Launch, router: str, dialer: Dialer) -> bool:
    if launch.http is not None:
        return await asyncio.to_thread(_answers, launch.http)
    try:
        if launch.endpoint is not None:
            return await _is_registered(launch.endpoint, router, dialer)
        return launch.grpc is None or await _is_serving(launch.grpc, dialer)
    except grpc.aio.AioRpcError:
        return False


async def _is_serving(address: str, dialer: Dialer) -> bool:
    async with dialer.open(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TRY_SECONDS)
    serving: bool = answer.status == health_pb2.HealthCheckResponse.SERVING
    return serving


async def _is_registered(endpoint: str, router: str, dialer: Dialer) -> bool:
    async with dialer.open(router) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        request = model_pb2.ListWorkersRequest()
        answer = await stub.ListWorkers(request, timeout=TRY_SECONDS, metadata=dialer.metadata())
    return any(
        worker.endpoint == endpoint and worker.state == model_pb2.WORKER_STATE_READY
        for worker in answer.workers
    )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=TRY_SECONDS):  # noqa: S310, our own shim
            return True
    except (urllib.error.URLError, OSError):
        return False

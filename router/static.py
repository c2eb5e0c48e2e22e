"""Workers that are named in the configuration and polled, instead of registering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import grpc

from tensorway.errors import TensorwayError
from tensorway.probing import healthy
from tensorway.v1 import model_pb2, model_pb2_grpc

from .config import StaticWorker
from .fleet import Fleet

LOG = logging.getLogger(__name__)

POLL_SECONDS = 1.0
POLL_TIMEOUT = 3.0
# Bad polls in a row after which a worker is out, like a lease that ran out.
MISSES = 3


@asynccontextmanager
async def polled(fleet: Fleet, workers: Iterable[StaticWorker]) -> AsyncIterator[None]:
    """Keep these workers in the fleet while they are healthy, for as long as this lasts."""
    tasks = [asyncio.create_task(_keep(fleet, worker)) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def _keep(fleet: Fleet, worker: StaticWorker) -> None:
    async with fleet.dialer.open(worker.address) as channel:
        while True:
            try:
                await _hold(fleet, worker, channel)
            except (grpc.aio.AioRpcError, TensorwayError) as error:
                LOG.warning("%s at %s: %s", worker.endpoint, worker.address, error)
            await asyncio.sleep(POLL_SECONDS)


async def _hold(fleet: Fleet, worker: StaticWorker, channel: grpc.aio.Channel) -> None:
    """Join once the worker is healthy, return when it is not any more."""
    if not await healthy(channel, fleet.dialer.metadata()):
        return
    joined = await fleet.join(await _ask(worker, channel, fleet))
    misses = 0
    try:
        while misses < MISSES:
            await asyncio.sleep(POLL_SECONDS)
            misses = 0 if await healthy(channel, fleet.dialer.metadata()) else misses + 1
    finally:
        fleet.leave(joined)


async def _ask(worker: StaticWorker, channel: grpc.aio.Channel, fleet: Fleet) -> model_pb2.Worker:
    stub = model_pb2_grpc.ModelServiceStub(channel)
    answer = await stub.ListModels(
        model_pb2.ListModelsRequest(), timeout=POLL_TIMEOUT, metadata=fleet.dialer.metadata()
    )
    model = next(iter(answer.models), model_pb2.Model())
    return model_pb2.Worker(endpoint=worker.endpoint, address=worker.address, model=model)

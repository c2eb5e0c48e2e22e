"""A router that follows another one: it has the same workers, and passes registrations on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from tensorway.channels import Dialer
from tensorway.errors import TensorwayError
from tensorway.v1 import model_pb2, model_pb2_grpc

from .fleet import Fleet
from .front import Context
from .worker import Worker

LOG = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
REGISTER = "/tensorway.v1.RegistryService/Register"


def open_leader(leader: str, dialer: Dialer) -> grpc.aio.Channel:
    """A channel to the leader; one on this machine, at ``unix:PATH``, has no TLS."""
    if leader.startswith("unix:"):
        return grpc.aio.insecure_channel(leader)
    return dialer.open(leader)


@asynccontextmanager
async def following(fleet: Fleet, leader: grpc.aio.Channel) -> AsyncIterator[None]:
    """Keep the fleet as the leader's is; while the leader is away, it stays as it was."""
    task = asyncio.create_task(_follow(fleet, leader))
    try:
        yield
    finally:
        task.cancel()


async def _follow(fleet: Fleet, leader: grpc.aio.Channel) -> None:
    stub, known = model_pb2_grpc.ModelServiceStub(leader), dict[str, Worker]()
    while True:
        watch = stub.WatchWorkers(
            model_pb2.WatchWorkersRequest(), metadata=fleet.dialer.metadata(), wait_for_ready=True
        )
        try:
            async for answer in watch:
                await _match(fleet, known, answer.workers)
        except (grpc.aio.AioRpcError, TensorwayError) as error:
            LOG.warning("following the leader: %s; trying again", error)
        await asyncio.sleep(RETRY_SECONDS)


async def _match(
    fleet: Fleet, known: dict[str, Worker], workers: Iterable[model_pb2.Worker]
) -> None:
    """Make the fleet what the leader says; `known` is by the leader's ids."""
    told = {worker.worker_id: worker for worker in workers}
    for gone in known.keys() - told.keys():
        fleet.leave(known.pop(gone))
    for worker_id, worker in told.items():
        if worker_id not in known:
            known[worker_id] = await fleet.join(worker)
        if worker.state == model_pb2.WORKER_STATE_DRAINING and not known[worker_id].draining:
            fleet.drain(known[worker_id])


class RelayedRegistry:
    """RegistryService of a follower: the leader holds the registration."""

    def __init__(self, leader: grpc.aio.Channel, dialer: Dialer) -> None:
        self._register: Any = leader.stream_stream(REGISTER, None, None)
        self._dialer = dialer

    async def Register(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Pass a worker's messages to the leader, and the leader's answers to the worker."""
        call = self._register(metadata=self._dialer.metadata())
        feeding = asyncio.create_task(_feed(requests, call))
        try:
            async for answer in call:
                await context.write(answer)
        finally:
            feeding.cancel()
            call.cancel()


async def _feed(requests: AsyncIterator[bytes], call: Any) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        async for message in requests:
            await call.write(message)
        await call.done_writing()

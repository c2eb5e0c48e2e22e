"""A worker's side of RegistryService: stay registered with every router, leave cleanly."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from tensorway import errors
from tensorway.channels import Dialer
from tensorway.options import RegisterOptions
from tensorway.v1 import model_pb2, registry_pb2, registry_pb2_grpc

LOG = logging.getLogger(__name__)

LOAD_SECONDS = 1.0
RETRY_SECONDS = 1.0
LEAVE_SECONDS = 2.0

Load = Callable[[], model_pb2.WorkerLoad]


def advertised(options: RegisterOptions, host: str, port: int) -> str:
    """The address under which others reach a worker that listens on host and port."""
    if options.advertise is not None:
        return options.advertise
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    name = socket.getfqdn() if everywhere else host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


@asynccontextmanager
async def registered(
    routers: Sequence[str], dialer: Dialer, worker: model_pb2.Worker, load: Load
) -> AsyncIterator[None]:
    """Hold a registration with each router; leaving asks for no new work first.

    A router that cannot be reached, or is lost, is tried again every second for as long
    as this lasts. A router that refuses the worker (its endpoint serves another model)
    is logged and tried again too, since the other worker may leave.
    """
    async with AsyncExitStack() as stack:
        leases: list[_Lease] = []
        for address in routers:
            channel = await stack.enter_async_context(dialer.open(address))
            leases.append(_Lease(address, channel, dialer, worker, load))
        try:
            yield
        finally:
            await asyncio.gather(*(lease.leave() for lease in leases))


class _Lease:
    """The registration with one router, renewed until we leave."""

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        dialer: Dialer,
        worker: model_pb2.Worker,
        load: Load,
    ) -> None:
        self._address = address
        self._stub = registry_pb2_grpc.RegistryServiceStub(channel)
        self._dialer = dialer
        self._worker = worker
        self._load = load
        self._leaving = asyncio.Event()
        self._task = asyncio.create_task(self._keep())

    async def leave(self) -> None:
        """Tell the router, and wait until it sends nothing new; bounded."""
        self._leaving.set()
        await asyncio.wait({self._task}, timeout=LEAVE_SECONDS)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _keep(self) -> None:
        said = ""
        while not self._leaving.is_set():
            try:
                await self._hold()
                lost: errors.TensorwayError = errors.Unavailable("it ended the registration")
            except grpc.aio.AioRpcError as error:
                lost = errors.from_rpc_error(error)
            why = str(lost) or lost.reason
            # Once for each cause: a router may be away for hours. One that is told to stop
            # is nothing to worry about.
            if why != said and not self._leaving.is_set():
                level = logging.INFO if lost.reason == "SHUTTING_DOWN" else logging.WARNING
                LOG.log(
                    level, "not registered with router %s: %s; trying again", self._address, why
                )
            said = why
            await _wait(self._leaving, RETRY_SECONDS)

    async def _hold(self) -> None:
        call = self._stub.Register(self._messages(), metadata=self._dialer.metadata())
        try:
            async for answer in call:
                if answer.state == model_pb2.WORKER_STATE_DRAINING:
                    return
                LOG.info("registered with %s as %s", self._address, answer.worker_id)
        finally:
            call.cancel()

    async def _messages(self) -> AsyncIterator[registry_pb2.RegisterRequest]:
        yield registry_pb2.RegisterRequest(registration=self._worker)
        while not await _wait(self._leaving, LOAD_SECONDS):
            yield registry_pb2.RegisterRequest(load=self._load())
        yield registry_pb2.RegisterRequest(drain=registry_pb2.Drain())
        # The router ends the stream by answering; ours stays open until then.
        await asyncio.sleep(LEAVE_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True

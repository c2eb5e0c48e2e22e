"""RegistryService: a worker is known for as long as its stream lives and is not silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tensorway.errors import DeadlineExceeded, InvalidArgument
from tensorway.v1 import model_pb2, registry_pb2

from .fleet import Fleet
from .front import Context
from .worker import Worker

# A timer that fires this late tells that the whole process stood still.
_LATE_SECONDS = 0.5

Messages = AsyncIterator[registry_pb2.RegisterRequest]


class RegistryService:
    """Takes workers in and lets them go; `lease` is the longest silence, in seconds."""

    def __init__(self, fleet: Fleet, lease: float) -> None:
        self._fleet = fleet
        self._lease = lease

    async def Register(self, requests: Messages, context: Context) -> None:
        """Hold one worker's registration until its stream ends or it is silent too long."""
        first = await self._next(requests)
        if first is None or first.WhichOneof("message") != "registration":
            raise InvalidArgument("the first message must be a registration", field="registration")
        worker = await self._fleet.join(first.registration)
        try:
            await context.write(self._answer(worker))
            while (message := await self._next(requests)) is not None:
                await self._heard(worker, message, context)
        finally:
            self._fleet.leave(worker)

    async def _heard(
        self, worker: Worker, message: registry_pb2.RegisterRequest, context: Context
    ) -> None:
        match message.WhichOneof("message"):
            case "load":
                worker.report(message.load.requests, message.load.tokens)
            case "drain":
                self._fleet.drain(worker)
                await context.write(self._answer(worker))
            case kind:
                raise InvalidArgument(f"message: expected load or drain, got {kind}")

    async def _next(self, requests: Messages) -> registry_pb2.RegisterRequest | None:
        read = asyncio.ensure_future(anext(requests, None))
        try:
            while not await self._came(read):
                pass
            return await read
        finally:
            read.cancel()

    async def _came(self, read: asyncio.Future[registry_pb2.RegisterRequest | None]) -> bool:
        """Whether it came within a lease; False when this process was stopped meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._lease
        done, _ = await asyncio.wait({read}, timeout=self._lease)
        # What came while this process itself was stopped is still to be read.
        if done or loop.time() > end + _LATE_SECONDS:
            return bool(done)
        raise DeadlineExceeded(f"no load report within {self._lease:g} s")

    def _answer(self, worker: Worker) -> registry_pb2.RegisterResponse:
        answer = registry_pb2.RegisterResponse(
            worker_id=worker.registration.worker_id,
            state=model_pb2.WORKER_STATE_DRAINING
            if worker.draining
            else model_pb2.WORKER_STATE_READY,
        )
        answer.lease.FromMilliseconds(round(self._lease * 1000))
        return answer

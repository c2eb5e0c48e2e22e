"""RegistryService: a worker is known for as long as its stream lives and is not silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tensorway.errors import DeadlineExceeded, InvalidArgument
from tensorway.v1 import model_pb2, registry_pb2

from .fleet import Fleet
from .front import Context
from .worker import Worker

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
        try:
            async with asyncio.timeout(self._lease):
                return await anext(requests, None)
        except TimeoutError:
            raise DeadlineExceeded(f"no load report within {self._lease:g} s") from None

    def _answer(self, worker: Worker) -> registry_pb2.RegisterResponse:
        answer = registry_pb2.RegisterResponse(
            worker_id=worker.registration.worker_id,
            state=model_pb2.WORKER_STATE_DRAINING
            if worker.draining
            else model_pb2.WORKER_STATE_READY,
        )
        answer.lease.FromMilliseconds(round(self._lease * 1000))
        return answer

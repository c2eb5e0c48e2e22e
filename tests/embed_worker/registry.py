"""A RegistryService that remembers who is registered with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tensorway.handlers import Context, Service
from tensorway.options import ListenOptions
from tensorway.serving import Server
from tensorway.v1 import model_pb2, registry_pb2

_DESCRIPTOR = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]


class Registry:
    """Takes every worker in, for as long as its stream lives."""

    def __init__(self) -> None:
        self.address = ""
        self.workers: list[model_pb2.Worker] = []
        self.ever: list[model_pb2.Worker] = []
        self.loads: list[model_pb2.WorkerLoad] = []
        self.drained = 0

    async def Register(
        self, requests: AsyncIterator[registry_pb2.RegisterRequest], context: Context
    ) -> AsyncIterator[Any]:
        """Hold a registration."""
        worker = (await anext(requests)).registration
        self.workers.append(worker)
        self.ever.append(worker)
        yield registry_pb2.RegisterResponse(worker_id="1", state=model_pb2.WORKER_STATE_READY)
        try:
            async for message in requests:
                if message.WhichOneof("message") == "drain":
                    self.drained += 1
                    self.workers.remove(worker)
                    yield registry_pb2.RegisterResponse(state=model_pb2.WORKER_STATE_DRAINING)
                else:
                    self.loads.append(message.load)
        finally:
            if worker in self.workers:
                self.workers.remove(worker)

    async def has(self, count: int, seconds: float = 20.0) -> None:
        """Wait until so many workers are registered."""
        async with asyncio.timeout(seconds):
            while len(self.workers) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def registering() -> AsyncIterator[Registry]:
    """A registry on a free port."""
    registry = Registry()
    service = Service(_DESCRIPTOR, registry, lasting=frozenset({"Register"}))
    async with Server(ListenOptions(grace=1.0), [service]) as server:
        registry.address = f"127.0.0.1:{server.port}"
        yield registry

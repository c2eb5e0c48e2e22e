"""A real router on a free port, with fake workers that register with it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from router.config import Config
from router.fleet import Fleet
from router.follow import following
from router.front import Front
from router.options import RouterOptions
from router.services import front, registry, relayed_registry, services
from tensorway.channels import Dialer
from tensorway.options import DialOptions, ListenOptions
from tensorway.serving import Server
from tensorway.v1 import embedding_pb2, embedding_pb2_grpc, model_pb2, model_pb2_grpc
from tests.router.fakes import FakeWorker, running


@dataclass
class Running:
    """A router, a channel to it, and what it can be asked."""

    port: int
    front: Front
    channel: grpc.aio.Channel
    stack: AsyncExitStack
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def fleet(self) -> Fleet:
        """Its table of workers."""
        return self.front.fleet

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def models(self) -> Any:
        """Its ModelService."""
        return model_pb2_grpc.ModelServiceStub(self.channel)

    @property
    def embedding(self) -> Any:
        """Its EmbeddingService."""
        return embedding_pb2_grpc.EmbeddingServiceStub(self.channel)

    async def embed(
        self, *texts: str, model: str = "fake", timeout: float | None = 10.0, **fields: Any
    ) -> embedding_pb2.EmbedResponse:
        """Embed texts through it."""
        request = embedding_pb2.EmbedRequest(model=model, texts={"texts": texts}, **fields)
        return await self.embedding.Embed(request, timeout=timeout)

    async def vectors(self, *texts: str) -> list[list[float]]:
        """The vectors of texts, embedded through it."""
        return [list(item.values) for item in (await self.embed(*texts)).embeddings]

    async def add(self, worker: FakeWorker | None = None, **options: Any) -> FakeWorker:
        """A worker in this process, once the router knows it."""
        worker, known = worker or FakeWorker(), self.ids()
        await self.stack.enter_async_context(running(worker, self.address, **options))
        await self.until(lambda: bool(self.ids() - known))
        return worker

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """A worker in a process of its own, once the router knows it."""
        # Not by their number: another one may be leaving.
        known = self.ids()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.router.fakes", self.address, *arguments)
        )
        self.processes.append(process)
        await self.until(lambda: bool(self.ids() - known))
        return process

    def ids(self) -> set[str]:
        """The ids of the workers it knows."""
        return {worker.registration.worker_id for worker in self.fleet.workers()}

    async def until(self, reached: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait for a change of the router's workers to bring something about."""
        async with asyncio.timeout(seconds):
            while not reached():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Kill the workers that are processes."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def routing(
    config: Config | None = None,
    timeout: float = 60.0,
    port: int = 0,
    leader: grpc.aio.Channel | None = None,
    **options: Any,
) -> AsyncIterator[Running]:
    """A router with these options, which may follow another one."""
    dialer = Dialer(DialOptions())
    async with AsyncExitStack() as stack:
        router = RouterOptions(**{"settle": 0.0, **options})
        fleet = await stack.enter_async_context(Fleet(router.rules(), dialer))
        shared = front(router, config or Config(), fleet)
        registered = relayed_registry(leader, fleet) if leader else registry(router, fleet)
        if leader:
            await stack.enter_async_context(following(fleet, leader))
        parts = services(router, shared, registered, timeout)
        server = await stack.enter_async_context(Server(ListenOptions(port=port, grace=1.0), parts))
        await server.set_serving()
        channel = await stack.enter_async_context(dialer.open(f"127.0.0.1:{server.port}"))
        running = Running(server.port, shared, channel, stack)
        stack.push_async_callback(running.end)
        yield running


@pytest.fixture
async def router() -> AsyncIterator[Running]:
    """A router with default options."""
    async with routing() as running:
        yield running


def request(*texts: str, model: str = "fake") -> embedding_pb2.EmbedRequest:
    """A request for texts."""
    return embedding_pb2.EmbedRequest(model=model, texts={"texts": texts})


def names(models: model_pb2.ListModelsResponse) -> list[str]:
    """Names of listed models."""
    return [model.name for model in models.models]

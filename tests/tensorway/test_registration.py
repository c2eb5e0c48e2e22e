"""A worker's registration against a small real registry: reports, drain, restarts, refusal."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tensorway import errors, registration
from tensorway.channels import Dialer
from tensorway.handlers import Service
from tensorway.options import DialOptions, ListenOptions
from tensorway.registration import registered
from tensorway.serving import Server
from tensorway.v1 import model_pb2, registry_pb2

WORKER = model_pb2.Worker(
    endpoint="tensorway.backend.embed",
    address="127.0.0.1:1",
    model=model_pb2.Model(name="minilm", dimensions=384),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report and try again ten times as often as in production."""
    monkeypatch.setattr(registration, "LOAD_SECONDS", 0.05)
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.1)


@dataclass
class Registry:
    """What a router's side of Register does, and what it has seen."""

    refuse: bool = False
    hang_up: bool = False
    acknowledge: bool = True
    seen: Counter[str] = field(default_factory=Counter)
    workers: list[model_pb2.Worker] = field(default_factory=list)
    loads: list[model_pb2.WorkerLoad] = field(default_factory=list)
    open: int = 0

    async def Register(
        self, requests: AsyncIterator[registry_pb2.RegisterRequest], context: Any
    ) -> AsyncIterator[registry_pb2.RegisterResponse]:
        """Hold a registration."""
        self.open += 1
        try:
            async for request in requests:
                kind = request.WhichOneof("message")
                self.seen[kind or ""] += 1
                if kind == "registration":
                    self.workers.append(request.registration)
                    yield self.registered()
                    if self.hang_up:
                        return
                elif kind == "load":
                    self.loads.append(request.load)
                elif self.acknowledge:
                    yield answer(model_pb2.WORKER_STATE_DRAINING)
        finally:
            self.open -= 1

    def registered(self) -> registry_pb2.RegisterResponse:
        """The first answer."""
        if self.refuse:
            raise errors.AlreadyExists("tensorway.backend.embed serves another model")
        return answer(model_pb2.WORKER_STATE_READY)

    @property
    def service(self) -> Service:
        """The service, for a server."""
        descriptor = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]
        return Service(descriptor, self, lasting=frozenset({"Register"}))


def answer(state: model_pb2.WorkerState) -> registry_pb2.RegisterResponse:
    """One answer of a router."""
    return registry_pb2.RegisterResponse(worker_id="w1", state=state)


@asynccontextmanager
async def router(registry: Registry, port: int = 0) -> AsyncIterator[str]:
    """A router of the registry alone; gives its address."""
    async with Server(ListenOptions(port=port), (registry.service,)) as server:
        yield f"127.0.0.1:{server.port}"


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a condition on what others do
            await asyncio.sleep(0.01)


def register(*addresses: str, load: Any = model_pb2.WorkerLoad) -> Any:
    """Register the worker with the routers."""
    return registered(addresses, Dialer(DialOptions()), WORKER, load)


async def test_register_report_and_leave() -> None:
    """A worker says who it is once, its load again and again, and goodbye before it goes."""
    registry, tokens = Registry(), iter(range(1000))

    def load() -> model_pb2.WorkerLoad:
        return model_pb2.WorkerLoad(requests=1, tokens=next(tokens))

    async with router(registry) as address:
        async with register(address, load=load):
            await until(lambda: len(registry.loads) >= 3)
        assert registry.seen["registration"] == registry.seen["drain"] == 1
        assert registry.workers == [WORKER]
        assert [load.tokens for load in registry.loads[:3]] == [0, 1, 2]
        await until(lambda: registry.open == 0)


async def test_several_routers() -> None:
    """A worker is known to each of them, and one that is away does not keep it from the others."""
    first, second = Registry(), Registry()
    async with router(first) as one, router(second) as two:
        async with register(one, "127.0.0.1:1", two):
            await until(lambda: first.open and second.open)
        assert first.seen["drain"] == second.seen["drain"] == 1


async def test_a_router_that_restarts(caplog: pytest.LogCaptureFixture) -> None:
    """The worker comes back by itself, and says once that it is out."""
    before, after = Registry(), Registry()
    async with router(before) as address:
        lease = register(address)
        await lease.__aenter__()
        await until(lambda: before.workers)
    await until(lambda: "not registered" in caplog.text)
    await asyncio.sleep(0.5)
    async with router(after, int(address.rpartition(":")[2])):
        await until(lambda: after.workers)
        await lease.__aexit__(None, None, None)
    assert after.seen["drain"] == 1
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == len(set(warnings))
    assert all(f"not registered with router {address}: " in line for line in warnings)


async def test_a_router_that_comes_later() -> None:
    """Start order does not matter."""
    registry = Registry()
    async with router(Registry()) as address:
        pass
    async with register(address):
        await asyncio.sleep(0.3)
        async with router(registry, int(address.rpartition(":")[2])):
            await until(lambda: registry.workers)


async def test_an_endpoint_that_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    """The refusal is logged with the router's reason, and the worker gets in once it may."""
    registry = Registry(refuse=True)
    async with router(registry) as address, register(address):
        await until(lambda: len(registry.workers) >= 3)
        assert caplog.text.count("tensorway.backend.embed serves another model") == 1
        registry.refuse = False
        await until(lambda: registry.loads)


async def test_a_router_that_hangs_up_at_once() -> None:
    """A stream that ends well is tried again at a bounded rate, not in a busy loop."""
    registry = Registry(hang_up=True)
    async with router(registry) as address, register(address):
        await asyncio.sleep(0.55)
    assert 2 <= len(registry.workers) <= 7


async def test_leaving_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that never acknowledges a drain does not keep a worker from its end."""
    monkeypatch.setattr(registration, "LEAVE_SECONDS", 0.2)
    registry = Registry(acknowledge=False)
    async with router(registry) as address, asyncio.timeout(10):
        async with register(address):
            await until(lambda: registry.workers)
        await until(lambda: registry.open == 0)
    assert registry.seen["drain"] == 1


async def test_a_worker_that_fails_leaves_too() -> None:
    """When the engine dies, the router hears it from the worker at once."""
    registry = Registry()
    async with router(registry) as address:
        with pytest.raises(RuntimeError, match="engine"):
            await failing(address, registry)
        await until(lambda: registry.open == 0)
    assert registry.seen["drain"] == 1


async def failing(address: str, registry: Registry) -> None:
    """A worker that fails after it registered."""
    async with register(address):
        await until(lambda: registry.workers)
        raise RuntimeError("engine")


async def test_no_router_at_all() -> None:
    """A worker may serve alone."""
    async with register():
        pass

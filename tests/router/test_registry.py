"""Workers come and go: registration, leases, drains (R3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc
import pytest

from tensorway.channels import Dialer
from tensorway.options import DialOptions
from tensorway.v1 import model_pb2, registry_pb2, registry_pb2_grpc
from tests.router.conftest import Running, routing
from tests.router.fakes import FakeWorker, running


def registration(
    address: str, model: str = "fake", endpoint: str = "test.backend.embed", **fields: int
) -> registry_pb2.RegisterRequest:
    """The first message of a worker."""
    worker = model_pb2.Worker(
        endpoint=endpoint, address=address, model=model_pb2.Model(name=model, **fields)
    )
    return registry_pb2.RegisterRequest(registration=worker)


async def refused(router: Running, message: registry_pb2.RegisterRequest) -> grpc.aio.AioRpcError:
    """How the router refuses a worker."""

    async def messages() -> AsyncIterator[registry_pb2.RegisterRequest]:
        yield message

    stub = registry_pb2_grpc.RegistryServiceStub(router.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Register(messages()).read()
    return caught.value


async def test_another_model_on_the_same_endpoint_is_refused(router: Running) -> None:
    """One endpoint path has one model; the message names all three."""
    await router.add(FakeWorker("a"), endpoint="test.backend.embed")

    error = await refused(router, registration(router.address, model="b"))

    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert error.details() == "endpoint: 'test.backend.embed' serves model 'a', got 'b'"
    assert len(router.fleet.workers()) == 1


async def test_the_same_model_on_several_endpoints_is_one_pool(router: Running) -> None:
    """Both workers get requests of the one model."""
    workers = [await router.add(FakeWorker("a"), endpoint=f"test.{i}.embed") for i in range(2)]

    await asyncio.gather(*(router.embed("x", model="a") for _ in range(10)))

    assert all(worker.requests for worker in workers)


async def test_an_endpoint_is_free_again_when_its_workers_left(router: Running) -> None:
    """A path is not taken for ever by the model it once had."""
    async with running(FakeWorker("a"), router.address):
        await router.until(lambda: bool(router.fleet.workers()))
    await router.until(lambda: not router.fleet.workers())

    await router.add(FakeWorker("b"))

    assert (await router.embed("x", model="b")).model == "b"


async def test_workers_of_one_model_are_alike(router: Running) -> None:
    """Vectors of two widths under one name would be two models."""
    await router.add()

    error = await refused(router, registration(router.address, endpoint="a.b.c", dimensions=9))

    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "dimensions 8, got 9" in str(error.details())


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (registration("127.0.0.1:1", endpoint="a.b"), "INVALID_ARGUMENT", "expected namespace"),
        (registration("nowhere"), "INVALID_ARGUMENT", "expected host:port, got 'nowhere'"),
        (registration("127.0.0.1:1", model=""), "INVALID_ARGUMENT", "model.name: missing"),
        (registry_pb2.RegisterRequest(), "INVALID_ARGUMENT", "must be a registration"),
    ],
)
async def test_a_bad_registration_is_refused(
    router: Running, message: registry_pb2.RegisterRequest, code: str, text: str
) -> None:
    """The message says what was expected and what came."""
    error = await refused(router, message)

    assert error.code().name == code
    assert text in str(error.details())


async def test_a_worker_that_cannot_be_reached_is_not_taken_in(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address must not be listed and then fail every request."""
    monkeypatch.setattr("router.fleet.CONNECT_SECONDS", 0.1)

    error = await refused(router, registration("127.0.0.1:1"))

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "'127.0.0.1:1' does not answer" in str(error.details())
    assert not router.fleet.models


async def test_a_known_model_without_a_worker_is_unavailable(router: Running) -> None:
    """The model is known, so its absence may pass."""
    async with running(FakeWorker(), router.address):
        await router.until(lambda: bool(router.fleet.workers()))
    await router.until(lambda: not router.fleet.workers())

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed("x")

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "'fake' has no live worker" in str(caught.value.details())


async def test_a_worker_that_drains_gets_nothing_new_and_finishes_what_it_has(
    router: Running,
) -> None:
    """Leaving loses no request, and the other worker takes over."""
    slow, other = FakeWorker(), FakeWorker()
    slow.delay = 0.3
    async with running(slow, router.address, endpoint="test.a.embed"):
        await router.until(lambda: bool(router.fleet.workers()))
        first = asyncio.ensure_future(router.embed("x"))
        await router.until(lambda: slow.active == 1)
        await router.add(other, endpoint="test.b.embed")
    answers = await asyncio.gather(first, *(router.embed("y") for _ in range(5)))

    assert all(answer.embeddings for answer in answers)
    assert (len(slow.requests), len(other.requests)) == (1, 5)
    assert [worker.place[0] for worker in router.fleet.workers()] == ["test.b.embed"]


async def test_a_silent_worker_loses_its_lease_and_its_requests_go_elsewhere() -> None:
    """Silence is the only sign of a worker that is stopped; its stream is then closed."""
    async with routing(lease=0.3) as router:
        hung = FakeWorker()
        hung.delay = 60
        dialer = Dialer(DialOptions())
        async with running(hung) as server, dialer.open(router.address) as channel:
            stub = registry_pb2_grpc.RegistryServiceStub(channel)
            stream = stub.Register()
            await stream.write(registration(f"127.0.0.1:{server.port}"))
            answer = await stream.read()
            request = asyncio.ensure_future(router.embed("x"))
            await router.until(lambda: hung.active == 1)
            other = asyncio.create_task(_beating(router))
            await router.until(lambda: len(router.fleet.workers()) == 2)

            assert (await request).embeddings
            with pytest.raises(grpc.aio.AioRpcError, match=r"no load report within 0\.3 s"):
                await stream.read()
            await router.until(lambda: hung.active == 0)
            assert answer.lease.ToMilliseconds() == 300
            other.cancel()


async def _beating(router: Running) -> None:
    worker = FakeWorker()
    async with running(worker) as server:
        stub = registry_pb2_grpc.RegistryServiceStub(router.channel)
        stream = stub.Register()
        await stream.write(registration(f"127.0.0.1:{server.port}", endpoint="test.other.embed"))
        while True:
            await stream.write(registry_pb2.RegisterRequest(load=model_pb2.WorkerLoad()))
            await asyncio.sleep(0.05)


async def test_a_worker_that_registers_again_replaces_itself(router: Running) -> None:
    """A worker that came back before the router noticed must not be there twice."""
    async with running(FakeWorker()) as server:
        stub = registry_pb2_grpc.RegistryServiceStub(router.channel)
        ids = []
        for _ in range(2):
            stream = stub.Register()
            await stream.write(registration(f"127.0.0.1:{server.port}"))
            ids.append((await stream.read()).worker_id)

        assert [worker.registration.worker_id for worker in router.fleet.workers()] == ids[1:]


async def test_workers_rejoin_a_router_that_was_lost() -> None:
    """A new router on the same port is whole without restarting a worker."""
    async with AsyncExitStack() as stack:
        async with routing() as first:
            port = first.port
            await stack.enter_async_context(running(FakeWorker(), first.address))
            await first.until(lambda: bool(first.fleet.workers()))
        async with routing(port=port) as second:
            await second.until(lambda: bool(second.fleet.workers()))
            assert (await second.embed("x")).embeddings
            await stack.aclose()


async def test_a_worker_registers_with_several_routers() -> None:
    """Each of them routes to it."""
    async with (
        routing() as one,
        routing() as two,
        running(FakeWorker(), one.address, two.address),
    ):
        for router in (one, two):
            await router.until(lambda router=router: bool(router.fleet.workers()))
            assert (await router.embed("x")).embeddings

"""What is tried again, where, and how often."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tensorway.v1 import model_pb2
from tests.router.conftest import Running
from tests.router.fakes import POISON, FakeWorker, running, vector
from tests.router.stopping import stopping

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


class Answering:
    """A server of another make, which answers every call with one gRPC code."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.calls = 0
        self._code = code

    async def Embed(self, request: object, context: grpc.aio.ServicerContext) -> None:
        """Refuse."""
        self.calls += 1
        await context.abort(self._code, "so be it")


@pytest.mark.parametrize("code", CODES)
async def test_only_unavailable_is_tried_again_and_once(
    router: Running, code: grpc.StatusCode
) -> None:
    """Three workers that answer each gRPC code: how many of them are asked."""
    servers = []
    workers = []
    for number in range(3):
        worker = FakeWorker()
        answering = Answering(code)
        worker.Embed = answering.Embed
        workers.append(answering)
        servers.append(await router.add(worker, endpoint=f"test.w{number}.embed"))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed("x")

    assert sum(worker.calls for worker in workers) == (2 if code is UNAVAILABLE else 1)
    if code is UNAVAILABLE:
        # It did not say that it was well, so it counts as lost: a second loss is the last.
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_worker_that_refuses_connections_is_not_noticed(router: Running) -> None:
    """Its registration stands, its port does not: every call succeeds on the other."""
    good = await router.add(FakeWorker(), endpoint="test.good.embed")
    async with running(FakeWorker(), endpoint="x.x.x") as server:
        registration = model_pb2.Worker(
            endpoint="test.bad.embed",
            address=f"127.0.0.1:{server.port}",
            model=FakeWorker().model,
        )
        bad = await router.fleet.join(registration)

    for _ in range(20):
        assert (await router.embed("x")).embeddings

    assert len(good.requests) == 20
    assert bad.ejected


async def test_a_poison_request_kills_at_most_two_workers(router: Running) -> None:
    """Then it is refused, in a way that no client tries again by itself."""
    processes = [await router.start("--endpoint", f"test.w{i}.embed") for i in range(4)]

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed(POISON)
    await router.until(lambda: sum(one.returncode is not None for one in processes) == 2)
    await router.until(lambda: len(router.fleet.workers()) == 2)

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "2 workers were lost" in str(caught.value.details())
    assert (await router.embed("hello")).embeddings
    assert sum(one.returncode is None for one in processes) == 2


async def test_calls_that_a_stopping_server_resets_are_not_noticed(router: Running) -> None:
    """What it has not taken up ends as CANCELLED, though nobody cancelled: tried elsewhere."""
    good = await router.add(endpoint="test.good.embed")
    async with stopping() as (process, address):
        worker = model_pb2.Worker(endpoint="test.stops.embed", address=address, model=good.model)
        stuck = await router.fleet.join(worker)
        calls = asyncio.gather(*(router.embed("x") for _ in range(10)))
        await router.until(lambda: len(good.requests) + stuck.requests == 10)
        given = stuck.requests
        # They are on their way, which nothing here can see.
        await asyncio.sleep(0.3)
        process.stdin.write(b"\n")

        answers = await calls

    assert all(list(answer.embeddings[0].values) == vector("x") for answer in answers)
    assert len(good.requests) == 10
    assert router.fleet.pools["fake"].counts.retries == given > 0

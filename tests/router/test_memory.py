"""A router's memory does not grow with what it refuses."""

from __future__ import annotations

import asyncio

import grpc
import psutil

from tensorway.channels import Dialer
from tensorway.options import MIB, DialOptions
from tensorway.v1 import embedding_pb2_grpc
from tests.router.conftest import request
from tests.router.fakes import FakeWorker, running
from tests.router.test_processes import known_everywhere, router_process

# About 25,000 tokens: three are let in.
BIG = request("x" * 100_000)
LIMIT = ("--model-limit", "76000")


async def refused(stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub, count: int) -> int:
    """How many of so many calls, 50 at once, are refused for load."""
    slots = asyncio.Semaphore(50)

    async def call() -> bool:
        async with slots:
            try:
                await stub.Embed(BIG, timeout=60)
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return False

    return sum(await asyncio.gather(*(call() for _ in range(count))))


async def test_memory_is_flat_over_the_limit() -> None:
    """With all of the limit taken, 150 MiB of refused requests leave nothing behind."""
    async with router_process(*LIMIT) as (process, port):
        worker = FakeWorker()
        async with (
            running(worker, f"127.0.0.1:{port}"),
            Dialer(DialOptions()).open(f"127.0.0.1:{port}") as channel,
        ):
            await known_everywhere(port, 1)
            worker.delay = 60
            stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
            stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
            held = [asyncio.ensure_future(stub.Embed(BIG, timeout=60)) for _ in range(3)]
            while worker.active < len(held):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

            memory = psutil.Process(process.pid).memory_info
            assert await refused(stub, 500) == 500
            before = memory().rss
            assert await refused(stub, 1500) == 1500

            # Allocators keep some; requests that stayed would be all of the 150 MiB.
            assert memory().rss - before < 32 * MIB
            assert worker.active == len(held)
            for call in held:
                call.cancel()

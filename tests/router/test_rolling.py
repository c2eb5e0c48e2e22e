"""Two routers are restarted one after the other under load: no caller sees an error."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from tensorway.client import AsyncClient
from tensorway.v1 import embedding_pb2_grpc
from tests.router.conftest import request, routing
from tests.router.fakes import FakeWorker, running, vector
from tests.router.load import Embed, Load
from tests.router.stopping import stopping

# Any client in any language may have such a one.
POLICY = {
    "maxAttempts": 5,
    "initialBackoff": "0.5s",
    "maxBackoff": "5s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
CONFIG = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": POLICY}]})


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


async def start(port: int) -> asyncio.subprocess.Process:
    """The router's command on a port, once it has answered."""
    command = ("-m", "router", "--port", str(port), "--settle", "60", "--log-level", "error")
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        await stub.Embed(request("x"), timeout=60, wait_for_ready=True)
    return process


@asynccontextmanager
async def plain(target: str) -> AsyncIterator[Embed]:
    """A client that has nothing of ours but the contract."""
    options = [("grpc.service_config", CONFIG)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)

        async def embed(*texts: str) -> list[list[float]]:
            answer = await stub.Embed(request(*texts), timeout=60)
            return [list(item.values) for item in answer.embeddings]

        yield embed


@asynccontextmanager
async def ours(target: str) -> AsyncIterator[Embed]:
    """Our own client."""
    async with AsyncClient(target, timeout=60) as client:

        async def embed(*texts: str) -> list[list[float]]:
            return (await client.embed(texts, model="fake")).tolist()

        yield embed


async def test_a_call_that_a_stopping_server_reset_goes_to_the_next() -> None:
    """Our client knows that nobody has looked at it, though gRPC calls it CANCELLED."""
    async with routing() as router, stopping() as (process, address):
        await router.add()
        async with ours(f"ipv4:{address},{router.address}") as embed:
            calls = asyncio.gather(*(embed("x") for _ in range(5)))
            # They are on their way to who does not take them up, which nothing can see.
            await asyncio.sleep(0.5)
            process.stdin.write(b"\n")

            assert await calls == [[vector("x")]] * 5


@pytest.mark.parametrize("client", [plain, ours])
async def test_a_rolling_restart_of_two_routers_is_not_noticed(client: type) -> None:
    """A stopping router is left before it is gone, and a new one waits for its workers."""
    ports = [free_port(), free_port()]
    routers = [f"127.0.0.1:{port}" for port in ports]
    async with AsyncExitStack() as stack:
        workers = [FakeWorker(), FakeWorker()]
        for number, worker in enumerate(workers):
            worker.delay = 0.05
            await stack.enter_async_context(
                running(worker, *routers, endpoint=f"test.w{number}.embed")
            )
        old = [await start(port) for port in ports]
        embed = await stack.enter_async_context(client("ipv4:" + ",".join(routers)))
        new = []
        async with Load(embed, rate=100).going() as load:
            for port, process in zip(ports, old, strict=True):
                await load.until(50)
                process.terminate()
                assert await process.wait() == 0
                new.append(await start(port))
            await load.until(50)
        for process in new:
            process.terminate()
            assert await process.wait() == 0

    assert load.errors == []

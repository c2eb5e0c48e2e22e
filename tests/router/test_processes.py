"""Several router processes on one port, and routers that follow another."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
from click.testing import CliRunner

from router.__main__ import main
from tensorway.v1 import embedding_pb2_grpc
from tests.router.conftest import Running, request, routing
from tests.router.fakes import FakeWorker, running


@asynccontextmanager
async def router_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """The command itself; gives the port that it logs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "--port", "0", *arguments),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    port = 0
    async with asyncio.timeout(20):
        while not port:
            line = (await process.stderr.readline()).decode()
            port = int(line.rpartition(":")[2]) if "listening on" in line else 0
    drained = asyncio.create_task(process.stderr.read())
    try:
        yield process, port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await drained


async def calls(port: int, count: int) -> int:
    """Calls that succeed, each over a connection of its own."""
    good = 0
    for _ in range(count):
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
            good += len((await stub.Embed(request("x"), timeout=10)).embeddings)
    return good


async def known_everywhere(port: int, count: int) -> None:
    """Wait until a row of connections finds the worker, whichever process they reach."""
    async with asyncio.timeout(20):
        while True:
            try:
                await calls(port, count)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_two_processes_on_one_port_know_the_same_workers() -> None:
    """A worker registers once; whichever process a connection reaches, it is answered."""
    async with router_process("--processes", "2") as (process, port):
        async with running(FakeWorker(), f"127.0.0.1:{port}"):
            await known_everywhere(port, 12)
            assert await calls(port, 20) == 20
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@asynccontextmanager
async def follower(leader: Running) -> AsyncIterator[Running]:
    """A router that follows another one."""
    async with (
        grpc.aio.insecure_channel(leader.address) as channel,
        routing(leader=channel) as router,
    ):
        yield router


async def test_a_follower_has_the_leaders_workers_as_they_come_and_go(router: Running) -> None:
    """It routes to them itself, and sees drains."""
    async with follower(router) as other, AsyncExitStack() as stack:
        await stack.enter_async_context(running(FakeWorker(), router.address))
        await other.until(lambda: bool(other.fleet.workers()))
        assert (await other.embed("x")).embeddings

        router.fleet.drain(router.fleet.workers()[0])
        await other.until(lambda: other.fleet.workers()[0].draining)
        await stack.aclose()
        await other.until(lambda: not other.fleet.workers())


async def test_a_worker_that_registers_with_a_follower_is_the_leaders(router: Running) -> None:
    """Registration is passed on, so that all have it."""
    async with follower(router) as other:
        async with running(FakeWorker(), other.address):
            await router.until(lambda: bool(router.fleet.workers()))
            await other.until(lambda: bool(other.fleet.workers()))
        await router.until(lambda: not router.fleet.workers())


async def test_a_follower_keeps_its_workers_while_the_leader_is_away() -> None:
    """Losing the leader for a while loses no request."""
    async with AsyncExitStack() as stack:
        leader = await stack.enter_async_context(routing())
        async with AsyncExitStack() as worker, follower(leader) as other:
            server = await worker.enter_async_context(running(FakeWorker(), leader.address))
            await other.until(lambda: bool(other.fleet.workers()))
            await stack.aclose()

            assert (await other.embed("x")).embeddings
            assert server.port


def test_flags_that_contradict_each_other_stop_the_start() -> None:
    """A follower cannot have followers; the message names both flags."""
    result = CliRunner().invoke(main, ["--processes", "2", "--follow", "x:1"])

    assert result.exit_code == 2
    assert result.stderr == (
        "Error: --processes and --follow: a router that follows is one process\n"
    )


async def test_a_router_that_stood_still_keeps_its_workers() -> None:
    """Reports that waited while the router was stopped still count when it goes on."""
    async with (
        router_process("--lease", "2") as (process, port),
        running(FakeWorker(), f"127.0.0.1:{port}"),
    ):
        await known_everywhere(port, 1)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4)
        process.send_signal(signal.SIGCONT)
        assert await calls(port, 40) == 40

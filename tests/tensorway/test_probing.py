"""Whether an ejected worker answers again."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tensorway import probing
from tensorway._client_calls import EMBED
from tensorway.options import ListenOptions
from tensorway.serving import Server
from tensorway.v1 import embedding_pb2
from tests.router.fakes import FakeWorker, running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that do not make the test wait."""
    monkeypatch.setattr(probing, "PROBE_SECONDS", 0.01)


async def test_a_worker_recovers_once_it_serves() -> None:
    """Not while it says that it does not."""
    async with (
        Server(ListenOptions(), []) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        recovered = asyncio.create_task(probing.recovered(channel, 3))
        await asyncio.sleep(0.2)
        assert not recovered.done()

        await server.set_serving()
        async with asyncio.timeout(10):
            await recovered


async def test_probing_ends_with_its_channel() -> None:
    """A worker that left is probed no more; its closed channel must not be used."""
    channel = grpc.aio.insecure_channel("127.0.0.1:1")
    await channel.close()

    async with asyncio.timeout(10):
        await probing.recovered(channel, 3)


async def test_nobody_there_is_not_healthy() -> None:
    """A refused connection is a bad probe, not an error."""
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        assert not await probing.healthy(channel)


async def test_a_channel_that_waits_for_its_last_calls_is_not_healthy() -> None:
    """A worker that was ejected and then left takes nothing new, and that is no error."""
    worker = FakeWorker()
    worker.delay = 0.5
    async with running(worker) as server:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")
        embed = channel.unary_unary(EMBED)
        request = embedding_pb2.EmbedRequest(request_id="r", texts={"texts": ["x"]})
        last = asyncio.ensure_future(embed(request.SerializeToString()))
        while not worker.active:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        closing = asyncio.create_task(channel.close(30))
        await asyncio.sleep(0)

        assert channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN
        assert not await probing.healthy(channel)
        assert await last
        await closing

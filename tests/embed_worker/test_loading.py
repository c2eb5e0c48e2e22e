"""From start to ready: live at once, ready only after the proof, and clear when it fails."""

from __future__ import annotations

import asyncio
import time

import pytest

from tensorway.errors import Unavailable
from tensorway.v1 import embedding_pb2, model_pb2
from tests.embed_worker.launch import NOT_SERVING, SERVING, Launcher, fails
from tests.embed_worker.registry import registering


async def test_while_the_model_loads(start: Launcher) -> None:
    """It answers at once that it is not ready, and is neither listed nor registered."""
    async with registering() as registry:
        worker = await start.start(
            *("--load-seconds", "3", "--router", registry.address), ready=False
        )
        started = time.monotonic()
        assert await worker.health() == NOT_SERVING
        error = await fails(worker.embedding.Embed(worker.request("a"), timeout=10))
        assert (type(error), error.reason) == (Unavailable, "LOADING")
        stream = worker.embedding.EmbedStream(
            iter([embedding_pb2.EmbedStreamRequest(request=worker.request("a"))])
        )
        assert type(await fails(stream.read())) is Unavailable
        assert not (await worker.models.ListModels(model_pb2.ListModelsRequest())).models
        assert not (await worker.models.ListWorkers(model_pb2.ListWorkersRequest())).workers
        assert "ready: " not in worker.output
        assert time.monotonic() - started < 3
        assert not registry.ever
        await worker.ready()
        await registry.has(1)
        assert await worker.health() == SERVING
        assert (await worker.embed("a")).shape == (1, 8)


async def test_a_signal_while_the_model_loads(start: Launcher) -> None:
    """Loading is given up at once."""
    worker = await start.start("--load-seconds", "60", ready=False)
    worker.kill()
    assert await worker.ended() == 0
    assert not start.left_over()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(
            ("--token-states",), "expected [2, 8] numbers, got ", id="width follows the length"
        ),
        pytest.param(("--nan-id", "2"), "the model gives NaN or infinity", id="NaN"),
        pytest.param(
            ("--late-interaction", "--nan-id", "2"),
            "the model gives NaN or infinity",
            id="NaN for a token",
        ),
        pytest.param(("--poison-id", "2"), "process ended with status 7", id="dies at once"),
        pytest.param(("--dimensions", "-1"), "process ended with status 1", id="load fails"),
    ],
)
async def test_a_model_that_fails_its_proof(
    start: Launcher, flags: tuple[str, ...], message: str
) -> None:
    """The process ends with status 1 and never registers."""
    async with registering() as registry:
        worker = await start.start(*flags, "--router", registry.address, ready=False)
        assert await worker.ended() == 1
        assert message in worker.output
        assert "ready: " not in worker.output
        assert not registry.ever
        assert not start.left_over()


async def test_a_worker_waits_for_its_router(start: Launcher) -> None:
    """It serves without one, and says so once, not every second."""
    worker = await start.start("--router", "127.0.0.1:9")
    await worker.logged("not registered with router 127.0.0.1:9")
    await asyncio.sleep(2.5)
    assert worker.output.count("not registered") == 1
    assert (await worker.embed("a")).shape == (1, 8)

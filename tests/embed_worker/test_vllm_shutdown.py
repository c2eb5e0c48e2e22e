"""SIGTERM on the real engine: nothing accepted is lost, and no process is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from tensorway.v1 import embedding_pb2
from tests.embed_worker import vllm
from tests.embed_worker.launch import Launcher, Worker, rows, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TERMINATIONS = 20
# Starting one takes several seconds of one core; the third serves while two load.
AT_ONCE = 3
TEXTS = [f"text {i}, which has " + "one word more " * i for i in range(8)]
BATCH = range(256)
BULK = embedding_pb2.PRIORITY_BULK


class Caller:
    """Asks one worker, and keeps what it was answered."""

    def __init__(self, worker: Worker, expected: NDArray[np.float64]) -> None:
        self.answers = 0
        self.refusals: list[grpc.StatusCode] = []
        self._worker = worker
        self._expected = expected

    def request(self, inputs: range, **fields: Any) -> embedding_pb2.EmbedRequest:
        """A request for some of the texts, over and over."""
        return self._worker.request(*(TEXTS[i % len(TEXTS)] for i in inputs), **fields)

    def check(self, response: Any, inputs: range) -> None:
        """Each input has its own vector."""
        expected = self._expected[[i % len(TEXTS) for i in inputs]]
        assert vllm.cosines(rows(response), expected).min() > 0.9999
        self.answers += 1

    async def ask(self, inputs: range, **fields: Any) -> None:
        """One call, which must be answered."""
        call = self._worker.embedding.Embed(self.request(inputs, **fields), timeout=120)
        self.check(await call, inputs)

    async def ask_on(self, inputs: range) -> None:
        """Call after call, until one is refused."""
        while not self.refusals:
            try:
                await self.ask(inputs)
            except grpc.aio.AioRpcError as error:
                self.refusals.append(error.code())

    async def stream(self, requests: int, inputs: range) -> None:
        """Requests on a stream that stays open; all must be answered, whatever ends it."""
        call = self._worker.embedding.EmbedStream(timeout=120)
        for i in range(requests):
            message = self.request(inputs, request_id=str(i))
            await call.write(embedding_pb2.EmbedStreamRequest(request=message))
        for _ in range(requests):
            self.check((await call.read()).response, inputs)
        try:
            assert await call.read() is grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            self.refusals.append(error.code())


@asynccontextmanager
async def started(folder: Path, model: Path) -> AsyncIterator[Worker]:
    """A worker with the model, of which nothing may be left in the end."""
    launcher = Launcher(folder)
    try:
        yield await vllm.start(launcher, model)
    finally:
        await launcher.close()


async def terminate(worker: Worker, expected: NDArray[np.float64]) -> None:
    """SIGTERM with work of every kind in flight, while more comes."""
    batch, stream, *others = [Caller(worker, expected) for _ in range(8)]
    held = [asyncio.create_task(batch.ask(BATCH, priority=BULK)) for _ in range(3)]
    held.append(asyncio.create_task(stream.stream(8, range(32))))
    async with asyncio.timeout(60):
        # Those that are answered by now were accepted, too.
        while batch.answers + stream.answers + (await worker.itself()).load.requests < 3 + 8:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    asking = [asyncio.create_task(caller.ask_on(range(i + 1))) for i, caller in enumerate(others)]
    await until(lambda: all(caller.answers for caller in others), 60)
    worker.kill()
    await asyncio.gather(*held, *asking)
    assert await worker.ended(120) == 0, worker.output
    assert (batch.answers, stream.answers) == (3, 8)
    for caller in (stream, *others):
        assert caller.refusals == [grpc.StatusCode.UNAVAILABLE], worker.output


async def test_20_sigterms_under_load_lose_nothing(
    tmp_path: Path, small_models: Path, reference: vllm.Reference
) -> None:
    """What was accepted gets its right vectors, later calls UNAVAILABLE; the status is 0."""
    folder = small_models / "plain"
    ids = await reference("tokens", folder, TEXTS)
    expected = np.array(await reference("pooled", folder, ids, "cls"))
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        logs = tmp_path / str(number)
        logs.mkdir()
        async with at_once, started(logs, folder) as worker:
            await terminate(worker, expected)

    async with asyncio.TaskGroup() as terminations:
        for number in range(TERMINATIONS):
            terminations.create_task(one(number))

"""Embedding workers in processes of their own, and what can be asked of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import sys
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from tensorway.channels import Dialer
from tensorway.errors import TensorwayError, from_rpc_error
from tensorway.options import DialOptions
from tensorway.v1 import (
    embedding_pb2,
    embedding_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    pooling_pb2_grpc,
)

# In the environment of every process that a test starts, so that none is overlooked.
MARK = "TENSORWAY_TEST_MARK"
NOTHING: Mapping[str, str] = {}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Worker:
    """A running worker."""

    process: asyncio.subprocess.Process
    log: Path
    channel: grpc.aio.Channel = field(init=False)
    address: str = ""
    model: str = "fake"

    @property
    def output(self) -> str:
        """Everything it has logged."""
        return self.log.read_text()

    @property
    def embedding(self) -> Any:
        """Its EmbeddingService."""
        return embedding_pb2_grpc.EmbeddingServiceStub(self.channel)

    @property
    def pooling(self) -> Any:
        """Its PoolingService."""
        return pooling_pb2_grpc.PoolingServiceStub(self.channel)

    @property
    def models(self) -> Any:
        """Its ModelService."""
        return model_pb2_grpc.ModelServiceStub(self.channel)

    def request(self, *texts: str, **fields: Any) -> embedding_pb2.EmbedRequest:
        """A request for texts."""
        return embedding_pb2.EmbedRequest(model=self.model, texts={"texts": texts}, **fields)

    def ids(self, *sequences: list[int], **fields: Any) -> embedding_pb2.EmbedRequest:
        """A request for token ids."""
        tokens = {"sequences": [{"ids": ids} for ids in sequences]}
        return embedding_pb2.EmbedRequest(model=self.model, tokens=tokens, **fields)

    async def embed(self, *texts: str, timeout: float = 20.0, **fields: Any) -> NDArray[np.float32]:
        """Vectors of texts, [texts, width]."""
        return rows(await self.embedding.Embed(self.request(*texts, **fields), timeout=timeout))

    async def health(self) -> int:
        """What it tells an orchestrator."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)).status

    async def health_becomes(self, status: int) -> None:
        """Watch what it tells an orchestrator until it is this."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(), timeout=20):
            if answer.status == status:
                return

    async def itself(self) -> model_pb2.Worker:
        """Its own description."""
        (worker,) = (await self.models.ListWorkers(model_pb2.ListWorkersRequest())).workers
        return worker

    async def metrics(self) -> dict[str, float]:
        """What /metrics shows: sample, with its labels, to value."""
        address = (await self.itself()).metrics_address
        return await asyncio.to_thread(_scrape, f"http://{address}/metrics")

    async def queued(self) -> float:
        """Inputs in the engine's process, as the fake engine tells."""
        return (await self.metrics())["fake_queue{engine_process=0}"]

    async def holds(self, requests: int) -> None:
        """Wait until it holds so many requests."""
        async with asyncio.timeout(5):
            while (await self.itself()).load.requests < requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def idle(self, seconds: float) -> None:
        """Wait until nothing is held in the worker or left in its engine."""
        async with asyncio.timeout(seconds):
            while await self.queued() or (await self.itself()).load.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def engine(self) -> int:
        """Process id of its engine."""
        (child,) = _children(self.process.pid)
        return child

    async def ended(self, seconds: float = 20.0) -> int:
        """Its exit status."""
        return await asyncio.wait_for(self.process.wait(), seconds)

    async def ready(self, seconds: float = 60.0) -> None:
        """Wait until it serves."""
        await self.logged("ready: ", seconds)

    async def logged(self, text: str, seconds: float = 30.0) -> re.Match[str]:
        """Wait until its log has a line with the text."""
        async with asyncio.timeout(seconds):
            while not (found := re.search(text, self.output)):
                assert self.process.returncode is None, self.output
                await asyncio.sleep(0.02)
        return found

    def kill(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


class Launcher:
    """Starts workers, and sees that nothing is left of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._workers: list[Worker] = []

    async def start(
        self,
        *flags: str,
        engine: str = "fake",
        ready: bool = True,
        environ: Mapping[str, str] = NOTHING,
    ) -> Worker:
        """A worker that listens, and is ready unless told otherwise."""
        log = self._folder / f"{next(self._numbers)}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "embed_worker", *flags),
                *("--engine", engine, "--metrics-port", "0"),
                stdout=output,
                stderr=output,
                env={**os.environ, MARK: self._mark, **environ},
            )
        worker = Worker(process, log)
        self._workers.append(worker)
        worker.address = (await worker.logged(r"listening on (\S+)"))[1]
        worker.channel = Dialer(DialOptions()).open(worker.address)
        if ready:
            await worker.ready()
        return worker

    async def close(self) -> None:
        """End what runs; nothing may be left of any worker."""
        for worker in self._workers:
            if worker.process.returncode is None:
                worker.kill()
                assert await worker.ended() == 0, worker.output
            if worker.address:
                await worker.channel.close()
        await until(lambda: not self.left_over(), 5)

    def left_over(self) -> list[int]:
        """Processes of these workers that are alive."""
        mark = f"{MARK}={self._mark}".encode()
        return [pid for pid in _processes() if mark in _environ(pid)]


async def until(reached: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def fails(call: Any) -> TensorwayError:
    """The error that ends a call."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError(f"answered: {answer}")


def rows(answer: Any) -> NDArray[np.float32]:
    """The vectors of an answer, [inputs, width]."""
    assert [item.index for item in answer.embeddings] == list(range(len(answer.embeddings)))
    return np.array([item.values for item in answer.embeddings], np.float32)


def _scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return {
        f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))}}}"
        if sample.labels
        else sample.name: sample.value
        for family in families
        for sample in family.samples
    }


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environ(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def _children(pid: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

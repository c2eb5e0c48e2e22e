"""Fixtures that every test may use: real servers on free ports, and channels to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tensorway.channels import Dialer
from tensorway.commands import demo, stack
from tensorway.handlers import Service
from tensorway.options import DialOptions, ListenOptions
from tensorway.serving import Server
from tensorway.v1 import model_pb2, model_pb2_grpc

Serving = Callable[..., Any]


@asynccontextmanager
async def serving(
    *services: Service, options: ListenOptions | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    """A real server of the services on a free port; gives a channel to it."""
    async with AsyncExitStack() as stack:
        dialer = Dialer(DialOptions())
        server = await stack.enter_async_context(Server(options or ListenOptions(), services))
        await server.set_serving()
        yield await stack.enter_async_context(dialer.open(f"127.0.0.1:{server.port}"))


@pytest.fixture(name="serving")
def serving_fixture() -> Serving:
    """The :func:`serving` context manager."""
    return serving


@dataclass(frozen=True)
class Fleet:
    """A fleet that `tensorway up` started, and where it answers."""

    grpc: str
    """Address of the router."""
    rest: str
    """URL of the shim, without a path."""
    worker: str
    """Address of the worker."""
    metrics: str
    """Address of the worker's metrics."""
    pid: int
    """Process of `tensorway up`, whose children the services are."""
    folder: Path
    """Folder of the model."""


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Router, shim and a worker with MiniLM on real vLLM, up for the whole session."""
    fleet = stack.settle(demo.minilm(0, 0))
    (workers,) = fleet.workers
    ports = ("--port", fleet.router.port, "--rest-port", fleet.rest.port, "--metrics-port", 0)
    command = ("-m", "tensorway.cli", "up", workers.model, *workers.args, *map(str, ports))
    log = tmp_path_factory.mktemp("minilm") / "log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            (sys.executable, *command),
            stdout=output,
            stderr=output,
            env={**os.environ, **workers.env},
        )
    try:
        _wait_for(log, "Ctrl-C stops everything", up)
        worker = _only_worker(f"127.0.0.1:{fleet.router.port}")
        yield Fleet(
            grpc=f"127.0.0.1:{fleet.router.port}",
            rest=f"http://127.0.0.1:{fleet.rest.port}",
            worker=worker.address,
            metrics=worker.metrics_address,
            pid=up.pid,
            folder=Path(workers.model),
        )
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0, log.read_text()


def _wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)


def _only_worker(router: str) -> model_pb2.Worker:
    with grpc.insecure_channel(router) as channel:
        models = model_pb2_grpc.ModelServiceStub(channel)
        (worker,) = models.ListWorkers(model_pb2.ListWorkersRequest(), timeout=10).workers
    return worker

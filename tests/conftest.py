"""Fixtures that every test may use: real servers on free ports, and channels to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import hypothesis
import pytest

from tensorway.channels import Dialer
from tensorway.commands import demo, stack
from tensorway.handlers import Service
from tensorway.options import DialOptions, ListenOptions
from tensorway.serving import Server
from tensorway.v1 import model_pb2, model_pb2_grpc

Serving = Callable[..., Any]

# A machine that others use, too, is no reason to fail.
hypothesis.settings.register_profile("tensorway", deadline=None)
hypothesis.settings.load_profile("tensorway")


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
class Up:
    """A fleet that `tensorway up` started, and where it answers."""

    process: subprocess.Popen[bytes]
    log: Path
    """What it printed."""
    grpc: str
    """Address of the router."""
    rest: str
    """URL of the shim, without a path."""

    def workers(self) -> list[model_pb2.Worker]:
        """The workers, as the router lists them."""
        with grpc.insecure_channel(self.grpc) as channel:
            stub = model_pb2_grpc.ModelServiceStub(channel)
            return list(stub.ListWorkers(model_pb2.ListWorkersRequest(), timeout=10).workers)

    def services(self) -> dict[int, list[str]]:
        """Command lines of the processes it started, by process id."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {int(c): Path(f"/proc/{c}/cmdline").read_text().split("\0") for c in children}


@contextmanager
def up(folder: Path, model: str, *args: str, env: Mapping[str, str] | None = None) -> Iterator[Up]:
    """`tensorway up MODEL ARGS` on free ports, from ready to stopped."""
    fleet = stack.settle(demo.minilm(0, 0))
    ports = ("--port", str(fleet.router.port), "--rest-port", str(fleet.rest.port))
    command = (sys.executable, "-m", "tensorway.cli", "up", model, *args, *ports)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **(env or {})}
        )
    try:
        while "Ctrl-C stops everything" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        rest = f"http://127.0.0.1:{fleet.rest.port}"
        yield Up(process, log, f"127.0.0.1:{fleet.router.port}", rest)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.fixture(name="up")
def up_fixture(tmp_path: Path) -> Callable[..., Any]:
    """The :func:`up` context manager, less its first argument."""
    return partial(up, tmp_path)


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Router, shim and a worker with MiniLM on real vLLM, up for the whole session."""
    (workers,) = demo.minilm(0, 0).workers
    args = (*workers.args, "--metrics-port", "0")
    with up(tmp_path_factory.mktemp("minilm"), workers.model, *args, env=workers.env) as fleet:
        yield fleet
    assert fleet.process.returncode == 0, fleet.log.read_text()

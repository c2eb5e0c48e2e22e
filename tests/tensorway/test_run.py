"""A service as a process: signals, the order of shutdown, exit statuses, bad flags."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tensorway.channels import Dialer
from tensorway.options import DialOptions
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.services import code

HERE = Path(__file__).parent
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Process:
    """The program of ``program.py``, running."""

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel

    @property
    def embeddings(self) -> embedding_pb2_grpc.EmbeddingServiceAsyncStub:
        """Its service; the model's name says how many seconds a call takes."""
        return embedding_pb2_grpc.EmbeddingServiceStub(self.channel)

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def exit_status(self) -> int:
        """Wait for the end; far shorter than the default grace of 30 s."""
        return await asyncio.wait_for(self.process.wait(), 15)


async def start(*args: str, env: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
    """Start the program."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "program.py"),
        *args,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def running(*args: str) -> AsyncIterator[Process]:
    """The program, once it serves."""
    process = await start(*args)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        async with Dialer(DialOptions()).open(f"127.0.0.1:{port}") as channel:
            yield Process(process, channel)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def called(process: Process, seconds: float) -> Awaitable[pb.EmbedResponse]:
    """A call that takes so long, already in the server's hands."""
    call = process.embeddings.Embed(pb.EmbedRequest(model=str(seconds)))
    assert process.process.stdout is not None
    assert await process.process.stdout.readline() == f"called {seconds}\n".encode()
    return call


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_calls_in_flight_finish(number: int) -> None:
    """A signal first shows in health, then refuses new calls, and lets the old ones finish."""
    async with running() as process:
        watch = health_pb2_grpc.HealthStub(process.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        call = await called(process, 1)
        process.send(number)
        assert (await watch.read()).status == NOT_SERVING
        assert (await call).model == "1"
        assert await process.exit_status() == 0


async def test_after_the_signal_new_calls_are_refused() -> None:
    """What would not be finished is not accepted; UNAVAILABLE may be tried elsewhere."""
    async with running() as process:
        watch = health_pb2_grpc.HealthStub(process.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        call = await called(process, 1)
        process.send(signal.SIGTERM)
        await watch.read()
        await asyncio.sleep(0.2)
        new = process.embeddings.Embed(pb.EmbedRequest(model="0"))
        assert await code(new) is grpc.StatusCode.UNAVAILABLE
        assert await code(call) is grpc.StatusCode.OK


async def test_calls_end_with_the_grace() -> None:
    """After the grace what is left ends with UNAVAILABLE, and the process with 0."""
    async with running("--grace", "0.3") as process:
        call = await called(process, 60)
        process.send(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "the server is shutting down"
        assert await process.exit_status() == 0


async def test_lasting_streams_do_not_delay() -> None:
    """A stream that never ends by itself does not use up the grace of 30 s."""
    async with running() as process:
        stream = process.embeddings.EmbedStream()
        await stream.write(pb.EmbedStreamRequest(request=pb.EmbedRequest(model="0")))
        await stream.read()
        process.send(signal.SIGTERM)
        assert await code(stream.read()) is grpc.StatusCode.UNAVAILABLE
        assert await process.exit_status() == 0


async def test_a_second_signal_ends_the_grace() -> None:
    """Who asks twice does not wait; the calls still get a proper answer."""
    async with running() as process:
        watch = health_pb2_grpc.HealthStub(process.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        call = await called(process, 60)
        process.send(signal.SIGTERM)
        await watch.read()
        process.send(signal.SIGTERM)
        assert await code(call) is grpc.StatusCode.UNAVAILABLE
        assert await process.exit_status() == 130


async def test_a_failure_ends_the_process() -> None:
    """A service that cannot go on exits with 1, so that it is started again; the log says why."""
    async with running() as process:
        call = process.embeddings.Embed(pb.EmbedRequest(model="die"))
        assert await code(call) is grpc.StatusCode.UNAVAILABLE
        assert await process.exit_status() == 1
        assert process.process.stderr is not None
        log = (await process.process.stderr.read()).decode()
        assert "CRITICAL tensorway.serving" in log
        assert "RuntimeError: the engine died" in log


async def refused(*args: str, env: Mapping[str, str] | None = None) -> str:
    """What a program says that stops at once because of its flags."""
    process = await start(*args, env=env)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2, err
    assert out == b""
    return err.decode()


async def test_flags_that_do_not_fit_together(tmp_path: Path) -> None:
    """A service with half of its TLS flags does not start, least of all in plaintext."""
    cert = tmp_path / "cert.pem"
    cert.touch()
    said = await refused("--tls-cert", str(cert))
    assert said == "Error: TLS needs both --tls-cert and --tls-key\n"


async def test_a_bad_value_names_the_flag() -> None:
    """A value is refused when it is parsed, wherever it comes from."""
    args, env = await asyncio.gather(
        refused("--grace", "soon"), refused(env={"TENSORWAY_TEST_MAX_MESSAGE_MIB": "0"})
    )
    assert "'--grace'" in args
    assert "'--max-message-mib'" in env


async def test_ports_that_are_taken() -> None:
    """A second process on a port stops with one line, and takes none of the first one's calls."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        grpc_said, metrics_said = await asyncio.gather(
            refused("--port", port), refused("--metrics-port", port)
        )
    said = f"cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert grpc_said == f"Error: --host and --port: {said}"
    assert metrics_said == f"Error: --metrics-port: {said}"

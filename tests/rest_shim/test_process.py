"""The command itself: one port for several processes, TLS, signals, flags that cannot work."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tensorway.options import ListenOptions
from tensorway.serving import Server
from tests.rest_shim.fakes import MODEL, FakeRouter
from tests.rest_shim.processes import started

BODY = {"model": MODEL, "input": "x"}


@dataclass
class Command:
    """The running command, its port, and the router behind it."""

    process: asyncio.subprocess.Process
    port: int
    router: FakeRouter

    async def ended(self) -> int:
        """Its exit status."""
        return await asyncio.wait_for(self.process.wait(), 30)


@asynccontextmanager
async def command(*flags: str) -> AsyncIterator[Command]:
    """``python -m rest_shim`` on a free port, in front of a fake router."""
    router = FakeRouter()
    async with Server(ListenOptions(), router.services()) as server:
        await server.set_serving()
        target = f"127.0.0.1:{server.port}"
        async with started("rest_shim", "--router", target, *flags) as (process, port):
            yield Command(process, port, router)


async def test_processes_share_a_port_and_their_metrics():
    """Every process answers on the one port, and each shows the numbers of all."""
    async with command("--processes", "2") as shim:
        url = f"http://127.0.0.1:{shim.port}"

        async def ask() -> None:
            async with httpx.AsyncClient(base_url=url) as http:
                assert (await http.post("/v1/embeddings", json=BODY)).status_code == 200

        for _ in range(4):
            await asyncio.gather(*(ask() for _ in range(10)))
        async with httpx.AsyncClient(base_url=url) as http:
            metrics = (await http.get("/metrics")).text
        assert 'tensorway_rest_requests_total{route="/v1/embeddings",status="200"} 40.0' in metrics
        shim.process.terminate()
        assert await shim.ended() == 0


async def test_killed_process_is_replaced_and_leaves_nothing_in_flight():
    """The port goes on, and the numbers forget what the killed process had begun."""
    async with command("--processes", "2") as shim:
        url = f"http://127.0.0.1:{shim.port}"
        shim.router.seconds = 30
        async with httpx.AsyncClient(base_url=url) as http:
            asked = asyncio.create_task(http.post("/v1/embeddings", json=BODY))
            await shim.router.started.wait()
            assert await in_flight(url) == 1
            kill_servers(shim.process.pid)
            with pytest.raises(httpx.HTTPError):
                await asked
        shim.router.seconds = 0
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            assert (await http.post("/v1/embeddings", json=BODY)).status_code == 200
        assert await in_flight(url) == 0


def kill_servers(parent: int) -> None:
    """Kill the processes that serve, but not multiprocessing's own helper."""
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGKILL)


async def in_flight(url: str) -> float:
    """Requests in flight, as /metrics tells."""
    async with httpx.AsyncClient(base_url=url) as http:
        text = (await http.get("/metrics")).text
    found = re.search(r"^tensorway_rest_requests_in_flight (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_request_in_flight_outlives_sigterm():
    """A request that was accepted is answered; then the process exits with status 0."""
    async with command() as shim, httpx.AsyncClient() as http:
        shim.router.seconds = 1.0
        url = f"http://127.0.0.1:{shim.port}/v1/embeddings"
        asked = asyncio.create_task(http.post(url, json=BODY))
        await shim.router.started.wait()
        shim.process.terminate()
        assert (await asked).status_code == 200
        assert await shim.ended() == 0


async def test_grace_is_bounded():
    """What is not done by the end of the grace is told so, and its call is cancelled."""
    async with command("--grace", "1") as shim, httpx.AsyncClient() as http:
        shim.router.seconds = 60
        url = f"http://127.0.0.1:{shim.port}/v1/embeddings"
        asked = asyncio.create_task(http.post(url, json=BODY))
        await shim.router.started.wait()
        shim.process.terminate()
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert await shim.ended() == 0
        await asyncio.wait_for(shim.router.cancelled.wait(), 5)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", key, "-out", cert, "-days", "1", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_https_and_client_certificates(certificate: tuple[str, str]):
    """With --tls-client-ca only a client with a certificate is served."""
    cert, key = certificate
    flags = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
    async with command(*flags) as shim:
        url = f"https://127.0.0.1:{shim.port}/v1/embeddings"
        known = ssl.create_default_context(cafile=cert)
        known.load_cert_chain(cert, key)
        async with httpx.AsyncClient(verify=known) as http:
            assert (await http.post(url, json=BODY)).status_code == 200
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=cert)) as http:
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                await http.post(url, json=BODY)
        async with httpx.AsyncClient() as http:
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await http.post(url.replace("https", "http"), json=BODY)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tls-cert", "pyproject.toml"), "--tls-key"),
        (("--tls-cert", "pyproject.toml", "--tls-key", "pyproject.toml"), "--tls-cert"),
        (("--token-file", "/dev/null"), "--token-file"),
        (("--processes", "2", "--token-file", "/dev/null"), "--token-file"),
        (("--dial-token-file", "/dev/null"), "--dial-token-file"),
        (("--processes", "0"), "--processes"),
        (("--port", "99999"), "--port"),
        (("--host", "192.0.2.1"), "--port"),
    ],
)
async def test_flags_that_cannot_work(flags: tuple[str, ...], words: str):
    """The process stops at once with status 2 and one line that names the flag."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rest_shim", "--port", "0", *flags),
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    _, told = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert words in told.decode().splitlines()[-1]


async def test_imports_neither_torch_nor_vllm():
    """The shim runs where no engine is installed."""
    code = "import rest_shim.server, sys; sys.exit(bool({'torch', 'vllm'} & set(sys.modules)))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0

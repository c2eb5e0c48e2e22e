"""A shim on a real HTTP port, with a fake router behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx
import pytest
import uvicorn

from rest_shim.app import create_app
from rest_shim.options import RestOptions
from rest_shim.server import listen, uvicorn_config
from tensorway.options import DialOptions, ListenOptions
from tensorway.serving import Server
from tests.rest_shim.fakes import MODEL, FakeRouter
from tests.rest_shim.processes import started


@dataclass
class Shim:
    """A running shim: where it is, a client of it, and the router behind it."""

    url: str
    http: httpx.AsyncClient
    router: FakeRouter
    server: Server

    async def lose_router(self) -> None:
        """Stop the router while the shim goes on."""
        await self.server._server.stop(None)

    async def embed(self, **body: Any) -> httpx.Response:
        """POST /v1/embeddings, for the fake's model unless told otherwise."""
        return await self.http.post("/v1/embeddings", json={"model": MODEL, **body})

    async def post(self, body: bytes) -> httpx.Response:
        """POST /v1/embeddings with these bytes."""
        return await self.http.post("/v1/embeddings", content=body)


Shims = Callable[..., AbstractAsyncContextManager[Shim]]


@asynccontextmanager
async def start_shim(
    rest: RestOptions | None = None,
    dial: DialOptions | None = None,
    router_options: ListenOptions | None = None,
) -> AsyncIterator[Shim]:
    """A shim with these options on a free port, and a fake router behind it."""
    router = FakeRouter()
    async with AsyncExitStack() as stack:
        server = Server(router_options or ListenOptions(), router.services())
        await stack.enter_async_context(server)
        await server.set_serving()
        target = f"127.0.0.1:{server.port}"
        options = replace(rest or RestOptions(), port=0, router=target)
        url = await stack.enter_async_context(served(options, dial or DialOptions()))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, verify=False))
        yield Shim(url, http, router, server)


@asynccontextmanager
async def served(rest: RestOptions, dial: DialOptions) -> AsyncIterator[str]:
    """URL of a shim with these options, whatever is behind it."""
    # Connections wait in the listening socket until the server has started.
    listener = listen(rest)
    server = uvicorn.Server(uvicorn_config(rest, partial(create_app, rest, dial)))
    task = asyncio.create_task(server.serve([listener]))
    scheme = "https" if rest.tls_cert else "http"
    try:
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def shims() -> Shims:
    """The :func:`start_shim` context manager."""
    return start_shim


@dataclass(frozen=True)
class Stack:
    """Router, worker and shim as processes of their own; the worker's engine is a fake."""

    router: str
    worker: str
    url: str


@pytest.fixture(scope="session")
async def stack() -> AsyncIterator[Stack]:
    """The whole stack, serving the model minilm."""
    async with AsyncExitStack() as life:
        _, router = await life.enter_async_context(started("router"))
        target = f"127.0.0.1:{router}"
        flags = ("minilm", "--engine", "fake", "--router", target, "--dimensions", "32")
        _, worker = await life.enter_async_context(started("embed_worker", *flags))
        _, rest = await life.enter_async_context(started("rest_shim", "--router", target))
        url = f"http://127.0.0.1:{rest}"
        async with httpx.AsyncClient(base_url=url) as http:
            while not (await http.get("/v1/models")).json()["data"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield Stack(target, f"127.0.0.1:{worker}", url)


@pytest.fixture(scope="session")
async def default_shim() -> AsyncIterator[Shim]:
    """A shim with default options, which lasts as long as the tests."""
    async with start_shim() as shim:
        yield shim


@pytest.fixture
def shim(default_shim: Shim) -> Shim:
    """The shim with default options, and a router that has forgotten everything."""
    vars(default_shim.router).update(vars(FakeRouter()))
    return default_shim

"""Fixtures that every test may use: real servers on free ports, and channels to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from tensorway.channels import Dialer
from tensorway.handlers import Service
from tensorway.options import DialOptions, ListenOptions
from tensorway.serving import Server

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

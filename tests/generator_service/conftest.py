"""Generators with an echo engine on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from generator_service.model import Generator
from generator_service.options import GeneratorOptions
from generator_service.servicer import GeneratorServicer, Holder
from tests.generator_service.fakes import EchoEngine
from tests.handoff.services import Service


@dataclass
class Running:
    """A generator that serves."""

    engine: EchoEngine
    generator: Generator
    service: Service


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def serve(serving) -> Serve:
    """Serves an echo engine; flags by keyword."""

    @asynccontextmanager
    async def run(engine: EchoEngine | None = None, **flags: Any) -> AsyncIterator[Running]:
        engine, options, holder = engine or EchoEngine(), GeneratorOptions(**flags), Holder()
        holder.loaded = Generator(engine, options, max_images=4)
        async with serving(GeneratorServicer(holder, options).service()) as channel:
            yield Running(engine, holder.loaded, service(channel))

    return run


def service(channel: grpc.aio.Channel) -> Service:
    """What can be asked of a channel."""
    found = Service(process=None, log=None)
    found.channel = channel
    return found

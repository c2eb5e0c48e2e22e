"""The generator as a whole: listen, load, prove, register, serve, drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from generator_service.engine import Engine
from generator_service.loading import in_thread, prove, watch
from generator_service.model import Generator
from generator_service.options import GeneratorOptions
from generator_service.servicer import GeneratorServicer, Holder
from tensorway.channels import Dialer
from tensorway.encoder import load_backend
from tensorway.encoding.encoder import Encoder
from tensorway.encoding.options import EncoderOptions, ImageOptions
from tensorway.flags import BadFlag
from tensorway.options import DialOptions, ListenOptions, RegisterOptions
from tensorway.registration import advertised, registered
from tensorway.serving import Server, Stop
from tensorway.single import SingleModel
from tensorway.v1 import model_pb2

LOG = logging.getLogger(__name__)


class Launch(NamedTuple):
    """Everything that the command line says."""

    options: GeneratorOptions
    encoder: EncoderOptions
    images: ImageOptions
    listen: ListenOptions
    register: RegisterOptions
    dial: DialOptions
    metrics_address: str
    engine_flags: Sequence[str]


async def run(stop: Stop, launch: Launch) -> None:
    """Serve until asked to stop; raises EngineDied when the engine dies before that."""
    # It is read again when it is used; here a mistake in it costs no load.
    launch.options.required_encoder()
    holder, single = Holder(), SingleModel()
    services = [GeneratorServicer(holder, launch.options).service(), single.service()]
    async with AsyncExitStack() as engines, AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(launch.listen, services))
        if (loaded := await stop.unless(_load(launch, engines))) is None:
            return
        engine, generator = loaded
        worker = describe(generator, launch, server.port)
        holder.loaded = generator
        single.ready(worker, generator.load)
        await server.set_serving()
        dialer = Dialer(launch.dial)
        routers = launch.register.router
        await stack.enter_async_context(registered(routers, dialer, worker, generator.load))
        LOG.info("ready: %s, rows of %d", generator.name, generator.info.shape.hidden_size)
        watching = asyncio.create_task(watch(engine, stop))
        generator.on_crash(stop.ask)
        try:
            await stop.wait()
        finally:
            watching.cancel()
            await server.set_serving(serving=False)


async def _load(launch: Launch, engines: AsyncExitStack) -> tuple[Engine, Generator]:
    encoder = await _load_encoder(launch, engines)

    def load() -> Engine:
        from generator_service.vllm_engine import VllmEngine

        return VllmEngine(launch.engine_flags, launch.options.engine_timeout)

    engine = await in_thread(load)
    engines.callback(engine.close)
    await prove(engine)
    return engine, Generator(engine, launch.options, launch.images.max_images, encoder)


async def _load_encoder(launch: Launch, engines: AsyncExitStack) -> Encoder | None:
    if launch.encoder.backend is None:
        return None
    try:
        backend = load_backend(launch.encoder.backend)
    except ValueError as error:
        raise BadFlag(f"--backend: {error}") from error
    encoder = Encoder(backend, launch.encoder, launch.images)
    await engines.enter_async_context(encoder)
    try:
        await encoder.load(launch.encoder.backend_model)
    except ValueError as error:
        raise BadFlag(f"--backend-model: {error}") from error
    return encoder


def describe(generator: Generator, launch: Launch, port: int) -> model_pb2.Worker:
    """The worker, as routers and callers see it."""
    info = generator.info
    name, *aliases = info.names
    return model_pb2.Worker(
        endpoint=launch.register.endpoint,
        address=advertised(launch.register, launch.listen.host, port),
        metrics_address=launch.metrics_address,
        state=model_pb2.WORKER_STATE_READY,
        model=model_pb2.Model(
            name=name,
            aliases=aliases,
            tasks=[model_pb2.TASK_GENERATE],
            dimensions=info.shape.hidden_size,
            max_model_len=info.shape.max_model_len,
            vocab_size=info.shape.vocab_size,
            dtype=info.shape.dtype.name,
            live_workers=1,
            root=info.root,
        ),
    )

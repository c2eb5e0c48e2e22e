"""The encoder service as a whole: listen, load, prove, register, serve, drain."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import NamedTuple

from encoder_service.handoff import ExternalEncoderHandoff
from encoder_service.options import EncoderServiceOptions
from encoder_service.servicer import EncoderServicer
from tensorway.channels import Dialer
from tensorway.encoder import load_backend
from tensorway.encoding.options import EncoderOptions, ImageOptions
from tensorway.flags import BadFlag
from tensorway.handoff import elements
from tensorway.options import DialOptions, ListenOptions, RegisterOptions
from tensorway.registration import advertised, registered
from tensorway.serving import Server, Stop
from tensorway.single import SingleModel
from tensorway.v1 import model_pb2

LOG = logging.getLogger(__name__)


class Launch(NamedTuple):
    """Everything that the command line says."""

    options: EncoderServiceOptions
    encoder: EncoderOptions
    images: ImageOptions
    listen: ListenOptions
    register: RegisterOptions
    dial: DialOptions
    metrics_address: str


async def run(stop: Stop, launch: Launch) -> None:
    """Serve until asked to stop; raises when the encoder's driver ends before that."""
    handoff = _handoff(launch)
    servicer, single = EncoderServicer(handoff, launch.options), SingleModel()
    services = [servicer.service(), single.service()]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(handoff.shutdown)
        server = await stack.enter_async_context(Server(launch.listen, services))
        if await stop.unless(_load(handoff, launch)) is None:
            return
        worker = describe(handoff, launch, server.port)
        servicer.name = worker.model.name
        single.ready(worker, servicer.load)
        await server.set_serving()
        routers, dialer = launch.register.router, Dialer(launch.dial)
        await stack.enter_async_context(registered(routers, dialer, worker, servicer.load))
        LOG.info("ready: %s, rows of %d", servicer.name, handoff.encoder.hidden_size)
        handoff.encoder.on_crash(stop.ask)
        try:
            await stop.wait()
        finally:
            await server.set_serving(serving=False)


def _handoff(launch: Launch) -> ExternalEncoderHandoff:
    if launch.encoder.backend is None:
        raise BadFlag("--backend: expected an encoder class, as package.module:Class")
    try:
        backend = load_backend(launch.encoder.backend)
    except ValueError as error:
        raise BadFlag(f"--backend: {error}") from error
    return ExternalEncoderHandoff(
        backend, launch.options.generator, launch.encoder, launch.images, launch.dial
    )


async def _load(handoff: ExternalEncoderHandoff, launch: Launch) -> ExternalEncoderHandoff:
    try:
        await handoff.load(launch.encoder.backend_model, launch.options.name)
    except ValueError as error:
        raise BadFlag(f"--backend-model: {error}") from error
    return handoff


def describe(handoff: ExternalEncoderHandoff, launch: Launch, port: int) -> model_pb2.Worker:
    """The worker, as routers and callers see it."""
    encoder = handoff.encoder
    return model_pb2.Worker(
        endpoint=launch.register.endpoint,
        address=advertised(launch.register, launch.listen.host, port),
        metrics_address=launch.metrics_address,
        state=model_pb2.WORKER_STATE_READY,
        model=model_pb2.Model(
            name=encoder.identity.model,
            tasks=[model_pb2.TASK_ENCODE],
            dimensions=encoder.hidden_size,
            dtype=elements.name(encoder.identity.element_type),
            live_workers=1,
            root=launch.encoder.backend_model or str(launch.encoder.backend),
        ),
    )

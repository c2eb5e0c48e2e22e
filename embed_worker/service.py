"""The worker as a whole: listen, load, prove, register, serve, drain."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal, NamedTuple

import click

from embed_worker.admission import Admission, Cost
from embed_worker.describe import describe
from embed_worker.engine import Step
from embed_worker.engine_client import EngineDied, EngineProcess, Place
from embed_worker.engine_group import EngineGroup
from embed_worker.metrics import engine_metrics
from embed_worker.model import Model
from embed_worker.pooling_servicer import PoolingServicer
from embed_worker.servicer import EmbeddingServicer, Holder
from embed_worker.vector_cache import VectorCache
from tensorway.channels import Dialer
from tensorway.errors import Unavailable
from tensorway.flags import BadFlag, flag
from tensorway.handlers import Service
from tensorway.options import MIB, DialOptions, ListenOptions, RegisterOptions, Seconds
from tensorway.registration import advertised, registered
from tensorway.serving import Server, Stop
from tensorway.single import SingleModel
from tensorway.v1 import model_pb2

LOG = logging.getLogger(__name__)

_COUNT = click.IntRange(min=1)
_USAGE_STATUS = 2


@dataclass(frozen=True)
class EmbedWorkerOptions:
    """What is the worker's own."""

    engine: Literal["vllm", "fake"] = flag(
        "vllm", help="vllm, or fake: deterministic vectors without a model."
    )
    engine_timeout: float = flag(
        8.0,
        help="Seconds in which a working engine must finish something, or is taken for hung.",
        type=Seconds(min=0.1),
    )
    engine_processes: int = flag(
        1, help="Engine processes that share the GPU and the model's work.", type=_COUNT
    )
    engine_poll: float = flag(
        0.5,
        help="Seconds for which an idle engine process of a GPU polls for work before it sleeps.",
        type=Seconds(min=0.0),
    )
    shard_tokens: int = flag(
        1536, help="Fewest tokens for which a request is cut over one more process.", type=_COUNT
    )
    max_inputs: int = flag(2048, help="Most inputs in a request.", type=_COUNT)
    max_queued_inputs: int = flag(
        16384, help="Most inputs in the worker; more are refused.", type=_COUNT
    )
    max_queued_tokens: int = flag(
        4194304, help="Most tokens in the worker; more are refused.", type=_COUNT
    )
    max_queued_bytes: int = flag(
        268435456, help="Most bytes of requests in the worker; more are refused.", type=_COUNT
    )
    vector_cache_bytes: int = flag(
        0,
        help="Memory for finished vectors of texts that come again; 0 keeps none.",
        type=click.IntRange(min=0),
    )
    max_stream_requests: int = flag(
        64, help="Most requests of one EmbedStream in flight.", type=_COUNT
    )


class Launch(NamedTuple):
    """Everything that the command line says."""

    options: EmbedWorkerOptions
    listen: ListenOptions
    register: RegisterOptions
    dial: DialOptions
    metrics_address: str
    engine_flags: Sequence[str]


async def run(stop: Stop, launch: Launch) -> None:
    """Serve until asked to stop; raises EngineDied when the engine dies before that."""
    holder, single = Holder(), SingleModel()
    engine = _engine(launch, holder)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine)
        services = _services(holder, single, launch)
        server = await stack.enter_async_context(Server(launch.listen, services))
        if (model := await stop.unless(_load(engine, launch.options))) is None:
            return
        stack.enter_context(engine_metrics(engine))
        worker = _describe(model, launch, server.port)
        holder.loaded = model
        single.ready(worker, model.load)
        await server.set_serving()
        dialer, routers = Dialer(launch.dial), launch.register.router
        await stack.enter_async_context(registered(routers, dialer, worker, model.load))
        LOG.info("ready: %s, %d dimensions", model.name, model.info.dimensions)
        engine.died.add_done_callback(lambda died: stop.ask(died.exception()))
        try:
            await stop.wait()
        finally:
            await server.set_serving(serving=False)


def _engine(launch: Launch, holder: Holder) -> EngineGroup:
    options, count = launch.options, launch.options.engine_processes

    def stepped(step: Step, seconds: float) -> None:
        if holder.loaded:
            holder.loaded.stepped(step, seconds)

    def process() -> EngineProcess:
        place, timeout = Place(count, options.engine_poll), options.engine_timeout
        return EngineProcess(options.engine, launch.engine_flags, place, timeout, stepped)

    return EngineGroup([process() for _ in range(count)], options.shard_tokens)


async def _load(engine: EngineGroup, options: EmbedWorkerOptions) -> Model:
    try:
        info = await engine.start()
    except EngineDied as error:
        if error.status == _USAGE_STATUS:
            raise BadFlag("the engine refused its flags; see its message above") from None
        raise
    limits = Cost(
        requests=options.max_queued_inputs,
        inputs=options.max_queued_inputs,
        tokens=options.max_queued_tokens,
        bytes=options.max_queued_bytes,
    )
    cached = options.vector_cache_bytes
    pooler = VectorCache(info.model_names[0], engine, cached) if cached else engine
    model = Model(info, pooler, Admission(limits), options.max_inputs)
    try:
        await model.prove()
    except Unavailable:
        await engine.died
        raise
    return model


def _describe(model: Model, launch: Launch, port: int) -> model_pb2.Worker:
    return model_pb2.Worker(
        endpoint=launch.register.endpoint,
        address=advertised(launch.register, launch.listen.host, port),
        metrics_address=launch.metrics_address,
        model=describe(model.info),
        state=model_pb2.WORKER_STATE_READY,
        capacity_tokens=launch.options.max_queued_tokens,
    )


def _services(holder: Holder, single: SingleModel, launch: Launch) -> tuple[Service, ...]:
    embedding = EmbeddingServicer(holder, launch.options.max_stream_requests)
    pooling = PoolingServicer(holder, launch.listen.max_message_mib * MIB)
    return embedding.service(), pooling.service(), single.service()

"""The router put together: its services over one table of workers."""

from __future__ import annotations

import time

import grpc

from tensorway import envelope
from tensorway.handlers import Service
from tensorway.v1 import (
    embedding_pb2,
    encoder_pb2,
    generator_pb2,
    model_pb2,
    pooling_pb2,
    registry_pb2,
)

from .admission import Admission
from .config import Config
from .embedding import EmbeddingService
from .fleet import Fleet
from .follow import RelayedRegistry
from .front import Front
from .models import ModelService
from .names import Names
from .options import RouterOptions
from .passing import GENERATOR, POOLING, passing
from .registry import RegistryService
from .relay import EncoderService, GeneratorService

_BYTES = (None, None)
_REGISTRY = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]
_LASTING = frozenset({"Register"})
_VIEWS = (envelope.EmbedStreamRequest.FromString, envelope.EmbedStreamResponse.SerializeToString)


def front(options: RouterOptions, config: Config, fleet: Fleet) -> Front:
    """What the services share."""
    admission = Admission(options.model_limit, options.caller_limit)
    settles = time.monotonic() + options.settle
    return Front(Names(fleet, config.aliases), admission, fleet, settles)


def registry(options: RouterOptions, fleet: Fleet) -> Service:
    """Where workers register, with this router."""
    return Service(_REGISTRY, RegistryService(fleet, options.lease), lasting=_LASTING)


def relayed_registry(leader: grpc.aio.Channel, fleet: Fleet) -> Service:
    """Where workers register, with the router that this one follows."""
    relayed = RelayedRegistry(leader, fleet.dialer)
    return Service(_REGISTRY, relayed, {"Register": _BYTES}, lasting=_LASTING)


def services(
    options: RouterOptions, front: Front, registry: Service, timeout: float
) -> tuple[Service, ...]:
    """All services of a router; `timeout` is the deadline of unary calls that set none."""
    pooling = pooling_pb2.DESCRIPTOR.services_by_name["PoolingService"]
    generator = generator_pb2.DESCRIPTOR.services_by_name["GeneratorService"]
    get_model = passing(front, generator, GENERATOR, timeout).GetModel
    return (
        Service(
            embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"],
            EmbeddingService(front, timeout, options.stream_window, options.max_inputs),
            {"Embed": _BYTES, "EmbedStream": _VIEWS},
            endless=frozenset({"EmbedStream"}),
        ),
        Service(
            pooling,
            passing(front, pooling, POOLING, timeout),
            dict.fromkeys(POOLING, _BYTES),
        ),
        Service(
            generator,
            GeneratorService(front, get_model, options.stream_timeout),
            {"Generate": _BYTES, "GetModel": _BYTES},
        ),
        Service(
            encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"],
            EncoderService(front, options.stream_timeout),
            {"Encode": _BYTES, "Generate": _BYTES},
        ),
        Service(
            model_pb2.DESCRIPTOR.services_by_name["ModelService"],
            ModelService(front.fleet, front.names, options.direct),
            lasting=frozenset({"WatchWorkers"}),
        ),
        registry,
    )

"""The router put together: its services over one table of workers."""

from __future__ import annotations

from tensorway import envelope
from tensorway.handlers import Service
from tensorway.v1 import embedding_pb2, model_pb2, pooling_pb2, registry_pb2

from .admission import Admission
from .config import Config
from .embedding import EmbeddingService
from .fleet import Fleet
from .front import Front
from .models import ModelService
from .names import Names
from .options import RouterOptions
from .passing import POOLING, passing
from .registry import RegistryService

_BYTES = (None, None)
_VIEWS = (envelope.EmbedStreamRequest.FromString, envelope.EmbedStreamResponse.SerializeToString)


def services(
    options: RouterOptions, config: Config, fleet: Fleet, timeout: float
) -> tuple[Service, ...]:
    """All services of a router; `timeout` is the deadline of unary calls that set none."""
    names = Names(fleet, config.aliases)
    front = Front(names, Admission(options.model_limit, options.caller_limit), fleet.dialer)
    pooling = pooling_pb2.DESCRIPTOR.services_by_name["PoolingService"]
    return (
        Service(
            embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"],
            EmbeddingService(front, timeout, options.stream_window),
            {"Embed": _BYTES, "EmbedStream": _VIEWS},
        ),
        Service(
            pooling,
            passing(front, pooling, POOLING, timeout),
            dict.fromkeys(POOLING, _BYTES),
        ),
        Service(
            model_pb2.DESCRIPTOR.services_by_name["ModelService"],
            ModelService(fleet, names, options.direct),
            lasting=frozenset({"WatchWorkers"}),
        ),
        Service(
            registry_pb2.DESCRIPTOR.services_by_name["RegistryService"],
            RegistryService(fleet, options.lease),
            lasting=frozenset({"Register"}),
        ),
    )

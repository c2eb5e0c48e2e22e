"""Prometheus metrics that every service has, and the port that shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import grpc
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, start_http_server

from tensorway.flags import BadFlag
from tensorway.options import ObserveOptions

# From 1 ms up: buckets that start at 1 s show nothing of an embedding's latency.
LATENCY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)

RPCS = Counter(
    "tensorway_rpcs", "RPCs that ended, by method and gRPC status code.", ["method", "code"]
)
RPC_SECONDS = Histogram(
    "tensorway_rpc_seconds",
    "Time from a call's arrival to its end, in seconds.",
    ["method"],
    buckets=LATENCY_BUCKETS,
)


def count_rpc(method: str, code: grpc.StatusCode, seconds: float) -> None:
    """Count an RPC that ended, after so many seconds."""
    _rpcs(method, code).inc()
    _rpc_seconds(method).observe(seconds)


# To look a label set up each time costs more than to count.
@cache
def _rpcs(method: str, code: grpc.StatusCode) -> Counter:
    return RPCS.labels(method, code.name)


@cache
def _rpc_seconds(method: str) -> Histogram:
    return RPC_SECONDS.labels(method)


@dataclass(frozen=True)
class Page:
    """A page beside the metrics: its content type, and what makes its content."""

    kind: str
    make: Callable[[], bytes]


def serve(
    options: ObserveOptions,
    registry: CollectorRegistry = REGISTRY,
    pages: Mapping[str, Page] = MappingProxyType({}),
) -> str:
    """Show the metrics over HTTP; returns the address, empty when there is none.

    Other pages may stand beside them, by path; they are made in the server's threads.
    """
    if options.metrics_port is None:
        return ""
    try:
        server, _ = start_http_server(options.metrics_port, options.metrics_host, registry)
    except OSError as error:
        address = f"{options.metrics_host}:{options.metrics_port}"
        raise BadFlag(f"--metrics-port: cannot listen on {address}: {error.strerror}") from error
    server.set_app(_with_pages(server.get_app(), pages))
    return f"{options.metrics_host}:{server.server_port}"


def _with_pages(app: Any, pages: Mapping[str, Page]) -> Any:
    def answer(environ: Mapping[str, Any], start_response: Any) -> Any:
        if (page := pages.get(environ["PATH_INFO"])) is None:
            return app(environ, start_response)
        start_response("200 OK", [("Content-Type", page.kind), ("Cache-Control", "no-store")])
        return [page.make()]

    return answer

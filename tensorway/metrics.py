"""Prometheus metrics that every service has, and the port that shows them."""

from __future__ import annotations

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


def serve(options: ObserveOptions, registry: CollectorRegistry = REGISTRY) -> str:
    """Show the metrics over HTTP; returns the address, empty when there is none."""
    if options.metrics_port is None:
        return ""
    try:
        server, _ = start_http_server(options.metrics_port, options.metrics_host, registry)
    except OSError as error:
        address = f"{options.metrics_host}:{options.metrics_port}"
        raise BadFlag(f"--metrics-port: cannot listen on {address}: {error.strerror}") from error
    return f"{options.metrics_host}:{server.server_port}"

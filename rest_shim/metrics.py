"""Metrics of the HTTP side, and the page that shows all metrics of the shim."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.requests import Request
from starlette.responses import Response

from tensorway.metrics import LATENCY_BUCKETS

_SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

REQUESTS = Counter(
    "tensorway_rest_requests", "HTTP requests that ended, by route and status.", ["route", "status"]
)
SECONDS = Histogram(
    "tensorway_rest_request_seconds",
    "Time from a request's head to the end of its answer, in seconds.",
    ["route"],
    buckets=LATENCY_BUCKETS,
)
IN_FLIGHT = Gauge(
    "tensorway_rest_requests_in_flight",
    "HTTP requests to /v1 that are being worked on.",
    multiprocess_mode="livesum",
)


@contextmanager
def shared() -> Iterator[None]:
    """Let the processes started inside share their numbers, through files."""
    with tempfile.TemporaryDirectory(prefix="tensorway-rest-") as folder:
        os.environ[_SHARED_FOLDER] = folder
        yield


async def show(_request: Request) -> Response:
    """GET /metrics: the numbers of all processes of this port."""
    return Response(generate_latest(registry()), media_type=CONTENT_TYPE_LATEST)


def registry() -> CollectorRegistry:
    """Where the numbers are: in this process, or in files of all of them."""
    if (folder := os.environ.get(_SHARED_FOLDER)) is None:
        return REGISTRY
    for file in Path(folder).glob("gauge_live*.db"):
        _forget_dead(int(file.stem.rpartition("_")[2]))
    together = CollectorRegistry()
    MultiProcessCollector(together)  # type: ignore[no-untyped-call]
    return together


def _forget_dead(pid: int) -> None:
    # What a killed process had in flight would be counted for ever.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]

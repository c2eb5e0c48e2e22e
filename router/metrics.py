"""The router's metrics. Labels are only names of registered models and workers.

What pools and workers count themselves is read from them when it is asked for, so that
it goes when they go and the data path does not pay for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import Self

import grpc
from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tensorway import errors
from tensorway.metrics import LATENCY_BUCKETS

from .fleet import Fleet
from .recent import Recents

# The hop itself takes well under a millisecond.
OWN_BUCKETS = (0.0001, 0.00025, 0.0005, *LATENCY_BUCKETS)

REQUESTS = Counter(
    "router_requests",
    "Routed requests that ended, by model and gRPC status code; unknown models have no name.",
    ["model", "code"],
)
SECONDS = Histogram(
    "router_request_seconds",
    "Time from a request's arrival to its end, in seconds.",
    ["model"],
    buckets=LATENCY_BUCKETS,
)
OWN_SECONDS = Histogram(
    "router_own_seconds",
    "The part of it in which no worker had the request, in seconds.",
    ["model"],
    buckets=OWN_BUCKETS,
)


# To look a label set up each time costs more than to count.
@cache
def _requests(model: str, code: grpc.StatusCode) -> Counter:
    return REQUESTS.labels(model, code.name)


@cache
def _seconds(model: str) -> tuple[Histogram, Histogram]:
    return SECONDS.labels(model), OWN_SECONDS.labels(model)


class Count:
    """Counts one request, whatever becomes of it; a context manager around the request."""

    def __init__(self, recents: Recents) -> None:
        self.model = ""
        """What the request is counted for, once it is known."""
        self._recents = recents
        self._worker_seconds = 0.0
        self._workers = 0
        self._since = 0.0
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        code = grpc.StatusCode.OK if error is None else _code(error)
        _requests(self.model, code).inc()
        if self.model:
            seconds = time.perf_counter() - self._started
            total, own = _seconds(self.model)
            total.observe(seconds)
            own.observe(seconds - self._worker_seconds)
            ok = code is grpc.StatusCode.OK
            self._recents[self.model].add(time.monotonic(), seconds, ok)

    def enter(self) -> None:
        """A worker has the request from now on."""
        if not self._workers:
            self._since = time.perf_counter()
        self._workers += 1

    def leave(self) -> None:
        """A worker does not have it any more."""
        self._workers -= 1
        if not self._workers:
            self._worker_seconds += time.perf_counter() - self._since


def _code(error: BaseException) -> grpc.StatusCode:
    match error:
        case errors.TensorwayError():
            return errors.grpc_code(error)
        case asyncio.CancelledError() | GeneratorExit():
            return grpc.StatusCode.CANCELLED
        case _:
            return grpc.StatusCode.INTERNAL


class FleetCollector(Collector):
    """Shows what pools and workers count."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        """The metrics, read now."""
        yield from self._models()
        yield from self._workers()

    def _models(self) -> Iterable[Metric]:
        pools = list(self._fleet.pools.values())
        for name, text in (
            ("retries", "Requests or shards that were tried on another worker."),
            ("ejections", "Times a worker was taken out for failing."),
            ("hedges", "Second tries of slow requests."),
            ("shards", "Parts of scattered requests."),
        ):
            family = CounterMetricFamily(f"router_{name}", text, labels=["model"])
            for pool in pools:
                family.add_metric([pool.model], getattr(pool.counts, name))
            yield family
        running = GaugeMetricFamily(
            "router_in_flight", "Requests that were let in and are not answered.", labels=["model"]
        )
        for pool in pools:
            running.add_metric([pool.model], pool.counts.in_flight)
        yield running

    def _workers(self) -> Iterable[Metric]:
        labels = ["model", "endpoint", "address"]
        picks = CounterMetricFamily("router_picks", "Times a worker was picked.", labels=labels)
        ready = GaugeMetricFamily("router_worker_ready", "1 if it may be picked.", labels=labels)
        work = GaugeMetricFamily(
            "router_worker_tokens", "About its tokens in flight.", labels=labels
        )
        silent = GaugeMetricFamily(
            "router_worker_silent_seconds",
            "How long it has had requests and answered none.",
            labels=labels,
        )
        now = time.monotonic()
        for worker in self._fleet.workers():
            place = [worker.model, *worker.place]
            picks.add_metric(place, worker.picks)
            ready.add_metric(place, worker.ready)
            work.add_metric(place, worker.work + worker.foreign)
            silent.add_metric(place, worker.silence.seconds(now))
        return (picks, ready, work, silent)

"""What the worker counts, per model; and vLLM's own metrics beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from operator import attrgetter

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from embed_worker.admission import Admission, Cost
from embed_worker.engine_group import EngineGroup
from tensorway.errors import ResourceExhausted, TensorwayError, grpc_code
from tensorway.metrics import LATENCY_BUCKETS

_POWERS = tuple(2**n for n in range(17))

REQUESTS = Counter(
    "embed_worker_requests",
    "Requests that ended, by task and gRPC status code.",
    ["model", "task", "code"],
)
INPUTS = Counter("embed_worker_inputs", "Inputs answered.", ["model", "task"])
TOKENS = Counter("embed_worker_tokens", "Tokens of the inputs answered.", ["model", "task"])
SECONDS = Histogram(
    "embed_worker_request_seconds",
    "Time from a request's arrival to its answer, in seconds.",
    ["model", "task"],
    buckets=LATENCY_BUCKETS,
)
QUEUE_SECONDS = Histogram(
    "embed_worker_queue_seconds",
    "Time from a request's arrival at the engine until it took the first input, in seconds.",
    ["model"],
    buckets=LATENCY_BUCKETS,
)
STEP_INPUTS = Histogram(
    "embed_worker_step_inputs", "Inputs finished by one engine step.", ["model"], buckets=_POWERS
)
STEP_TOKENS = Histogram(
    "embed_worker_step_tokens", "Tokens finished by one engine step.", ["model"], buckets=_POWERS
)
IN_FLIGHT = Gauge("embed_worker_requests_in_flight", "Requests not answered yet.", ["model"])
HELD = Gauge("embed_worker_queued", "Work accepted and not answered yet.", ["model", "resource"])
REJECTIONS = Counter(
    "embed_worker_rejections", "Requests refused for lack of room.", ["model", "reason"]
)
CACHED = Counter(
    "embed_worker_vector_cache_inputs",
    "Inputs asked of a worker that keeps vectors, by whether theirs had to be computed: hit, miss.",
    ["model", "result"],
)
CACHE_BYTES = Gauge("embed_worker_vector_cache_bytes", "Memory of the vectors kept.", ["model"])


def count_cached(model: str, inputs: int, computed: int) -> None:
    """Count a request's inputs, of which so many had to be computed."""
    CACHED.labels(model, "hit").inc(inputs - computed)
    CACHED.labels(model, "miss").inc(computed)


def show_held(model: str, admission: Admission) -> None:
    """Show the work that is accepted and not answered yet, whenever metrics are read."""
    for field in fields(Cost):
        read = attrgetter(f"held.{field.name}")
        HELD.labels(model, field.name).set_function(partial(read, admission))


@contextmanager
def observed(model: str, task: str) -> Iterator[None]:
    """Count one request of the model, whatever becomes of it."""
    started, code = time.perf_counter(), "OK"
    IN_FLIGHT.labels(model).inc()
    try:
        yield
    except TensorwayError as error:
        code = grpc_code(error).name
        if isinstance(error, ResourceExhausted):
            REJECTIONS.labels(model, error.reason).inc()
        raise
    except asyncio.CancelledError:
        code = "CANCELLED"
        raise
    except BaseException:
        code = "INTERNAL"
        raise
    finally:
        IN_FLIGHT.labels(model).dec()
        REQUESTS.labels(model, task, code).inc()
        SECONDS.labels(model, task).observe(time.perf_counter() - started)


class EngineCollector(Collector):
    """The metrics of the engine's process, fetched whenever ours are read."""

    def __init__(self, engine: EngineGroup) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the engine that has no namesake here."""
        asked = asyncio.run_coroutine_threadsafe(self._engine.scrape(), self._loop)
        families: dict[str, Metric] = {}
        for number, text in enumerate(asked.result()):
            for family in text_string_to_metric_families(text.decode()):
                merged = families.setdefault(family.name, family)
                own = [_labelled(sample, number) for sample in family.samples]
                merged.samples = own if merged is family else [*merged.samples, *own]
        # Each process also has its own gc and process metrics.
        ours = ("python_", "process_")
        yield from (family for name, family in families.items() if not name.startswith(ours))

    def describe(self) -> list[Metric]:
        """Name nothing yet: the engine may still be loading."""
        return []


def _labelled(sample: Sample, number: int) -> Sample:
    return sample._replace(labels={**sample.labels, "engine_process": str(number)})


@contextmanager
def engine_metrics(engine: EngineGroup) -> Iterator[None]:
    """Show the engine's metrics beside ours for as long as this lasts."""
    collector = EngineCollector(engine)
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)

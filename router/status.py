"""The status page, for people: models, workers, load, rate, latency, errors; live."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from tensorway import __version__
from tensorway.metrics import Page
from tensorway.v1 import model_pb2

from .front import Front
from .recent import Summary
from .worker import Worker

# A page waits this long for the event loop; longer means that the router hangs.
_ANSWER_SECONDS = 5.0

_HTML = Path(__file__).with_name("status.html").read_bytes()


class WorkerStatus(Struct, frozen=True):
    """One worker."""

    endpoint: str
    address: str
    state: str
    """ready, draining or ejected."""
    requests: int
    """In flight from this router."""
    tokens: float
    """About its tokens in flight, others' included."""
    fill: float
    """The part of its capacity that is taken."""
    picks: int
    """Requests and shards it was given since it registered."""
    silent: float
    """Seconds for which it has had requests and answered none."""


class ModelStatus(Struct, frozen=True):
    """One model and its workers."""

    name: str
    aliases: list[str]
    dimensions: int
    recent: Summary
    in_flight: int
    """Requests that have no answer yet."""
    retries: int
    ejections: int
    shards: int
    workers: list[WorkerStatus]


class Status(Struct, frozen=True):
    """Everything the page shows."""

    version: str
    uptime: float
    """Seconds since the router started."""
    models: list[ModelStatus]


class StatusPage:
    """Makes the page and its data; made in the event loop, asked from other threads."""

    def __init__(self, front: Front) -> None:
        self._fleet = front.fleet
        self._names = front.names
        self._recents = front.recents
        self._started = time.monotonic()
        self._loop = asyncio.get_running_loop()

    def pages(self) -> dict[str, Page]:
        """The page at the root, and its data beside it."""
        return {
            "/": Page("text/html; charset=utf-8", lambda: _HTML),
            "/status.json": Page("application/json", self._data),
        }

    def status(self) -> Status:
        """What there is to show now; only in the event loop."""
        now = time.monotonic()
        models = [self._model(name, now) for name in sorted(self._fleet.pools)]
        return Status(__version__, now - self._started, models)

    def _data(self) -> bytes:
        async def make() -> Status:
            return self.status()

        status = asyncio.run_coroutine_threadsafe(make(), self._loop)
        return msgspec.json.encode(status.result(_ANSWER_SECONDS))

    def _model(self, name: str, now: float) -> ModelStatus:
        model, counts = self._fleet.models[name], self._fleet.pools[name].counts
        return ModelStatus(
            name=name,
            aliases=sorted({*model.aliases, *self._names.aliases(name)}),
            dimensions=model.dimensions,
            recent=self._recents[name].summary(now),
            in_flight=counts.in_flight,
            retries=counts.retries,
            ejections=counts.ejections,
            shards=counts.shards,
            workers=[_worker(worker) for worker in self._fleet.workers(name)],
        )


def _worker(worker: Worker) -> WorkerStatus:
    endpoint, address = worker.place
    return WorkerStatus(
        endpoint=endpoint,
        address=address,
        state=model_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_").lower(),
        requests=worker.requests,
        tokens=worker.work + worker.foreign,
        fill=worker.fill,
        picks=worker.picks,
        silent=worker.silence.seconds(time.monotonic()),
    )

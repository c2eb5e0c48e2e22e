"""All workers, by the model that they serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from tensorway import probing
from tensorway.channels import Dialer
from tensorway.errors import Unavailable
from tensorway.pool import Pool, Rules
from tensorway.v1 import model_pb2

from . import admittance
from .worker import Worker

LOG = logging.getLogger(__name__)

# A worker whose address does not answer by then is refused.
CONNECT_SECONDS = 3.0


class Fleet:
    """The workers that are known now, in one pool for each model; closes their channels."""

    def __init__(self, rules: Rules, dialer: Dialer) -> None:
        self.pools: dict[str, Pool[Worker]] = {}
        self.models: dict[str, model_pb2.Model] = {}
        """What was last registered for each model, also when no worker is left."""
        self.changed = asyncio.Event()
        """Set once, when workers change; take it before you look at them."""
        self.dialer = dialer
        self._rules = rules
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        for worker in self.workers():
            await worker.channel.close(None)

    def workers(self, model: str = "") -> list[Worker]:
        """The workers of a model, or all of them, sorted by endpoint."""
        pools = [self.pools[model]] if model else list(self.pools.values())
        found = [worker for pool in pools for worker in pool.replicas]
        return sorted(found, key=lambda worker: worker.place)

    async def join(self, registration: model_pb2.Worker) -> Worker:
        """Take a worker in, once it can be reached; raises when it cannot be taken."""
        self._check(registration)
        channel = self.dialer.open(registration.address)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await channel.channel_ready()
            self._check(registration)
        except BaseException as error:
            await channel.close(None)
            if isinstance(error, TimeoutError):
                raise Unavailable(f"address: {registration.address!r} does not answer") from None
            raise
        return self._add(Worker(registration=_entered(registration), channel=channel))

    def drain(self, worker: Worker) -> None:
        """Give the worker nothing new; it finishes what it has."""
        worker.draining = True
        self.notify()

    def leave(self, worker: Worker) -> None:
        """Forget a worker. One that drained finishes its calls, others' calls end as lost."""
        pool = self.pools[worker.model]
        if worker not in pool.replicas:
            return
        pool.replicas.remove(worker)
        if not worker.draining:
            worker.lose()
        LOG.info("%s at %s left", *worker.place)
        self._spawn(worker.close())
        self.notify()

    def notify(self) -> None:
        """Tell whoever watches that workers changed."""
        self.changed.set()
        self.changed = asyncio.Event()

    def _check(self, registration: model_pb2.Worker) -> None:
        others = [worker.registration for worker in self.workers()]
        admittance.check(registration, others)

    def _add(self, worker: Worker) -> Worker:
        pool = self.pools.get(worker.model)
        if pool is None:
            pool = Pool(worker.model, self._rules, on_eject=self._ejected)
            self.pools[worker.model] = pool
        for old in [old for old in pool.replicas if old.place == worker.place]:
            self.leave(old)
        pool.replicas.append(worker)
        self._describe(worker.registration.model)
        LOG.info("%s at %s joined for %r", *worker.place, worker.model)
        self.notify()
        return worker

    def _describe(self, model: model_pb2.Model) -> None:
        known = self.models.setdefault(model.name, model_pb2.Model())
        created = known.create_time.ToDatetime() if known.HasField("create_time") else None
        known.CopyFrom(model)
        if created:
            known.create_time.FromDatetime(created)
        else:
            known.create_time.GetCurrentTime()

    def _ejected(self, worker: Worker) -> None:
        LOG.warning("%s at %s ejected", *worker.place)
        self._spawn(self._restore(worker))
        self.notify()

    async def _restore(self, worker: Worker) -> None:
        await probing.recovered(worker.channel, self._rules.outliers.probes, self.dialer.metadata())
        self.pools[worker.model].restore(worker)
        self.notify()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _entered(registration: model_pb2.Worker) -> model_pb2.Worker:
    entered = model_pb2.Worker()
    entered.CopyFrom(registration)
    entered.worker_id = uuid4().hex
    entered.register_time.GetCurrentTime()
    return entered

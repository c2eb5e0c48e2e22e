"""What is done for every routed request: find its pool, let it in, count it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from tensorway.channels import Metadata
from tensorway.pool import Pool
from tensorway.retry import HUNG_SECONDS
from tensorway.v1 import model_pb2

from . import metrics
from .admission import Admission, caller
from .fleet import Fleet
from .names import Names
from .recent import Recent, Recents
from .worker import Worker

# Seconds from a worker's deadline to its caller's.
_MARGIN = 0.02

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Route:
    """A request that was let in: its workers, its deadline, what goes with it."""

    pool: Pool[Worker]
    deadline: float
    metadata: Metadata
    count: metrics.Count

    @property
    def left(self) -> float:
        """Seconds that a worker has: a little less than the caller, whose end ends us too.

        So it is seen here which worker was late.
        """
        left = self.deadline - time.monotonic()
        return max(left - _MARGIN if left >= HUNG_SECONDS else left, 0.0)

    async def unary(self, method: str, worker: Worker, data: bytes) -> bytes:
        """Give the request to a worker; the answer as bytes."""
        self.count.enter()
        try:
            return await worker.unary(method, data, self.left, self.metadata)
        finally:
            self.count.leave()


@dataclass(frozen=True)
class Front:
    """What the router's services share; `settles` is when workers have had time to come."""

    names: Names
    admission: Admission
    fleet: Fleet
    settles: float = 0.0
    recents: Recents = field(default_factory=partial(Recents, Recent))

    @contextmanager
    def route(
        self,
        model: str,
        task: model_pb2.Task.ValueType | None,
        work: float,
        context: Context,
        seconds: float,
    ) -> Iterator[Route]:
        """Route a request of so many tokens to a model, for as long as this lasts.

        It must end within so many seconds.
        """
        with metrics.Count(self.recents) as count:
            pool, who = self.names.pool(model, task), caller(context)
            count.model = pool.model
            self.admission.take(pool.model, who, work)
            pool.counts.in_flight += 1
            try:
                deadline = time.monotonic() + seconds
                yield Route(pool, deadline, self.fleet.dialer.metadata(), count)
            finally:
                pool.counts.in_flight -= 1
                self.admission.give(pool.model, who, work)

    async def settled(self, model: str, seconds: float) -> None:
        """Wait for a name that nobody has yet, while the router is so young that it may come.

        Workers of a router that was restarted register within a second or two.
        """
        if self.names.knows(model):
            return
        end = min(seconds, self.settles - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(end):
                while not self.names.knows(model):
                    await self.fleet.changed.wait()

    async def room(self, model: str, work: float, context: Context, seconds: float) -> None:
        """Wait until a request of so many tokens would be let in, at most so many seconds."""
        name = self.names.pool(model).model
        await self.admission.room(name, caller(context), work, seconds)

"""A request's way over the workers of its model: tried again, hedged, scattered and gathered.

How bytes reach a worker is the caller's: the router sends over its own channels, a
client in direct mode over the client's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tensorway import envelope, sharding, silence, wire
from tensorway.balance import Replica
from tensorway.errors import TensorwayError
from tensorway.pool import Pool
from tensorway.retry import Trial

R = TypeVar("R", bound=Replica)
T = TypeVar("T")
Send = Callable[[R, bytes], Awaitable[bytes]]


@dataclass
class _Job(Generic[R]):
    data: bytes
    work: float
    send: Send[R]
    trial: Trial = field(default_factory=Trial)


async def embed(pool: Pool[R], request: Any, data: bytes, send: Send[R]) -> bytes:
    """Answer an EmbedRequest, given as view and as bytes; a big one is scattered."""
    count = len(envelope.inputs(request))
    if pool.rules.split_inputs and count >= pool.rules.split_inputs:
        replicas = pool.emptiest(count // pool.rules.shard_inputs)
        if len(replicas) > 1:
            return await scatter(pool, request, replicas, send)
    return await dispatch(pool, data, envelope.work(request, len(data)), send)


async def dispatch(pool: Pool[R], data: bytes, work: float, send: Send[R]) -> bytes:
    """Answer a request of so many tokens, on more than one worker if need be."""
    pool.budget.pay()
    job = _Job(data, work, send)
    if (patience := pool.patience(work)) is not None:
        return await _hedged(pool, job, asyncio.sleep(patience))
    return await _tried(pool, job)


async def scatter(pool: Pool[R], request: Any, replicas: Sequence[R], send: Send[R]) -> bytes:
    """Answer an EmbedRequest view with one shard for each worker, by what each has free.

    A shard that is late beside the others is tried on a second worker.
    """
    sizes = [envelope.tokens(1, len(item)) for item in envelope.inputs(request)]
    shards = sharding.split(sizes, [replica.free for replica in replicas])
    pool.counts.shards += len(shards)
    siblings = _Siblings(len(shards))

    async def answer(shard: sharding.Shard, replica: R) -> bytes:
        pool.budget.pay()
        work = sum(sizes[shard.start : shard.stop])
        job = _Job(sharding.part(request, shard), work, send)
        try:
            data = await _hedged(pool, job, siblings.outlast(job), replica)
        except TensorwayError as error:
            raise sharding.shift(error, shard.start) from None
        siblings.answered(work)
        return data

    parts = await _all_or_none(answer(*pair) for pair in zip(shards, replicas, strict=False))
    return wire.merge_embeddings(parts)


class _Siblings:
    """The shards of one batch, and how long those took that are answered."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._answers: list[silence.Answer] = []
        self._half = asyncio.Event()
        self._started = time.monotonic()

    def answered(self, work: float) -> None:
        """Note the answer to a shard of so many tokens."""
        self._answers.append((work, time.monotonic() - self._started))
        if 2 * len(self._answers) >= self._count:
            self._half.set()

    async def outlast(self, job: _Job[R]) -> None:
        """Return when a shard is late, beside half of the others or more."""
        await self._half.wait()
        patience = silence.patience(job.work, self._answers)
        await asyncio.sleep(self._started + patience - time.monotonic())
        for replica in job.trial.tried:
            replica.silence.late = True


async def _tried(pool: Pool[R], job: _Job[R], first: R | None = None) -> bytes:
    while True:
        with pool.attempt(job.trial, job.work, first) as replica:
            return await job.send(replica, job.data)
        first = None


async def _hedged(
    pool: Pool[R], job: _Job[R], patience: Coroutine[Any, Any, None], first: R | None = None
) -> bytes:
    """The first good answer of the usual try and a second one, made once patience ends."""
    waiting = asyncio.ensure_future(patience)
    tasks = [asyncio.ensure_future(_tried(pool, job, first))]
    try:
        await asyncio.wait({*tasks, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done() and pool.others(job.trial) and pool.budget.spend():
            pool.counts.hedges += 1
            tasks.append(asyncio.ensure_future(_tried(pool, job)))
        return await _first_good(tasks)
    finally:
        for task in (*tasks, waiting):
            task.cancel()


async def _first_good(tasks: Sequence[asyncio.Future[bytes]]) -> bytes:
    failed: TensorwayError | None = None
    for task in asyncio.as_completed(tasks):
        try:
            return await task
        except TensorwayError as error:
            failed = error
    assert failed is not None
    raise failed


async def _all_or_none(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; the first failure cancels the rest and is raised."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()

"""A request's way over the workers of its model: tried again, hedged, scattered and gathered.

How bytes reach a worker is the caller's: the router sends over its own channels, a
client in direct mode over the client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tensorway import envelope, sharding, wire
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
        replicas = pool.ready()[: count // pool.rules.shard_inputs]
        if len(replicas) > 1:
            return await scatter(pool, request, replicas, send)
    return await dispatch(pool, data, envelope.work(request, len(data)), send)


async def dispatch(
    pool: Pool[R], data: bytes, work: float, send: Send[R], first: R | None = None
) -> bytes:
    """Answer a request of so many tokens, on more than one worker if need be."""
    pool.budget.pay()
    job = _Job(data, work, send)
    if pool.rules.hedge_quantile and (patience := pool.patience()) is not None:
        return await _hedged(pool, job, patience)
    return await _tried(pool, job, first)


async def scatter(pool: Pool[R], request: Any, replicas: Sequence[R], send: Send[R]) -> bytes:
    """Answer an EmbedRequest view with one shard for each worker, by what each has free."""
    sizes = [envelope.tokens(1, len(item)) for item in envelope.inputs(request)]
    shards = sharding.split(sizes, [replica.free for replica in replicas])
    pool.counts.shards += len(shards)

    async def answer(shard: sharding.Shard, replica: R) -> bytes:
        piece, work = sharding.part(request, shard), sum(sizes[shard.start : shard.stop])
        try:
            return await dispatch(pool, piece, work, send, first=replica)
        except TensorwayError as error:
            raise sharding.shift(error, shard.start) from None

    parts = await _all_or_none(answer(*pair) for pair in zip(shards, replicas, strict=False))
    return wire.merge_embeddings(parts)


async def _tried(pool: Pool[R], job: _Job[R], first: R | None = None) -> bytes:
    while True:
        with pool.attempt(job.trial, job.work, first) as replica:
            return await job.send(replica, job.data)
        first = None


async def _hedged(pool: Pool[R], job: _Job[R], patience: float) -> bytes:
    """The first good answer of the usual try and a second one that starts when it is slow."""
    tasks = [asyncio.ensure_future(_tried(pool, job))]
    try:
        await asyncio.wait(tasks, timeout=patience)
        if not tasks[0].done() and len(pool.ready()) > 1 and pool.budget.spend():
            pool.counts.hedges += 1
            tasks.append(asyncio.ensure_future(_tried(pool, job)))
        return await _first_good(tasks)
    finally:
        for task in tasks:
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

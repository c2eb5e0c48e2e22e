"""Direct mode: the client balances over the workers itself, by the router's table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc

from tensorway import dispatch, envelope, probing, wire
from tensorway._client_calls import EMBED, Calls
from tensorway.aliases import Aliases, draw
from tensorway.balance import CAPACITY, Replica
from tensorway.channels import Dialer
from tensorway.pool import Pool, Rules
from tensorway.v1 import embedding_pb2, model_pb2

LOG = logging.getLogger(__name__)

# How long opening waits for the first table; without one, calls go through the router.
_FIRST_TABLE_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# Calls of a worker that left the table may go on for this long.
_LEAVE_SECONDS = 60.0


@dataclass(eq=False, kw_only=True)
class _Worker(Replica):
    address: str
    model: model_pb2.Model
    channel: grpc.aio.Channel
    send: Any = field(init=False)

    def __post_init__(self) -> None:
        self.send = self.channel.unary_unary(EMBED, None, None)


class Direct:
    """Embeds with the workers of a model, and follows the router's table meanwhile.

    Names are the router's, too: an alias is drawn here by the weights of its configuration.
    What the table does not know goes through the router. When the router is lost, the last
    table holds.
    """

    def __init__(self, calls: Calls, dialer: Dialer) -> None:
        self._calls = calls
        self._dialer = dialer
        self._rules = Rules()
        self._workers: dict[str, _Worker] = {}
        self._pools: dict[str, Pool[_Worker]] = {}
        self._aliases: Aliases = {}
        self._random = Random()  # noqa: S311
        self._table = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the table; leaving closes the channels to workers."""
        self._spawn(self._follow())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._table.wait(), _FIRST_TABLE_SECONDS)
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            for worker in self._workers.values():
                await worker.channel.close(None)

    async def embed(self, request: embedding_pb2.EmbedRequest, timeout: float) -> Any:
        """The answer as ``wire.EmbedResponse``."""
        if (pool := self._pool(request.model)) is None:
            return await self._calls.embed(request, timeout)
        deadline = time.monotonic() + timeout

        async def send(worker: _Worker, data: bytes) -> bytes:
            left = deadline - time.monotonic()
            answer: bytes = await worker.send(data, timeout=left, metadata=self._calls.metadata())
            return answer

        data = request.SerializeToString()
        view = envelope.EmbedRequest.FromString(data)
        if pool.model != request.model:
            view.model, data = pool.model, envelope.renamed(data, pool.model)
        answer = wire.EmbedResponse.FromString(await dispatch.embed(pool, view, data, send))
        answer.model = request.model
        return answer

    def _pool(self, name: str) -> Pool[_Worker] | None:
        targets = self._aliases.get(name)
        return self._pools.get(draw(targets, self._pools, self._random) if targets else name)

    async def _follow(self) -> None:
        while True:
            try:
                async for table in self._calls.watch_workers():
                    self._aliases = {a.name: _weights(a) for a in table.aliases}
                    self._update(table.workers)
            except grpc.aio.AioRpcError as error:
                LOG.info("table of workers: %s; trying again", error.details())
            await asyncio.sleep(_RETRY_SECONDS)

    def _update(self, workers: Sequence[model_pb2.Worker]) -> None:
        # A router that keeps the addresses to itself leaves nobody here.
        listed = {worker.worker_id: worker for worker in workers if worker.address}
        for worker_id in self._workers.keys() - listed.keys():
            self._leave(self._workers.pop(worker_id))
        for worker_id in listed.keys() - self._workers.keys():
            self._workers[worker_id] = self._join(listed[worker_id])
        for worker_id, shown in listed.items():
            self._workers[worker_id].draining = shown.state != model_pb2.WORKER_STATE_READY
        self._table.set()

    def _join(self, shown: model_pb2.Worker) -> _Worker:
        worker = _Worker(
            capacity=float(shown.capacity_tokens or CAPACITY),
            address=shown.address,
            model=shown.model,
            channel=self._dialer.open(shown.address),
        )
        pool = self._pools.get(shown.model.name)
        if pool is None:
            pool = Pool(shown.model.name, self._rules, on_eject=self._ejected)
        pool.replicas.append(worker)
        self._pools.update(dict.fromkeys((shown.model.name, *shown.model.aliases), pool))
        return worker

    def _leave(self, worker: _Worker) -> None:
        worker.lost = True
        self._pools[worker.model.name].replicas.remove(worker)
        self._spawn(worker.channel.close(_LEAVE_SECONDS))

    def _ejected(self, worker: _Worker) -> None:
        LOG.warning("worker %s ejected", worker.address)
        self._spawn(self._restore(worker))

    async def _restore(self, worker: _Worker) -> None:
        await probing.recovered(worker.channel, self._rules.outliers.probes)
        self._pools[worker.model.name].restore(worker)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _weights(alias: model_pb2.Alias) -> dict[str, float]:
    return {target.model: target.weight for target in alias.targets}

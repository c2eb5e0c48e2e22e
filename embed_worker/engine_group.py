"""Several engine processes that serve one model together.

Most of an engine's time goes into Python for each input; a second process on the same GPU
does its share of that while the first one's work runs (docs/performance.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from embed_worker.engine import EngineInfo, Params, Rows
from embed_worker.engine_client import EngineProcess
from embed_worker.tokenizer import Batch, Offsets
from tensorway.sharding import Shard, split

N = TypeVar("N", bound=np.generic)


class EngineGroup:
    """Engine processes as one engine, as a context manager."""

    def __init__(self, processes: Sequence[EngineProcess], shard_tokens: int) -> None:
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._processes = processes
        self._shard_tokens = shard_tokens
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for process in self._processes:
            await self._stack.enter_async_context(process)
            process.died.add_done_callback(self._one_died)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def start(self) -> EngineInfo:
        """Load the model in each process; raises EngineDied when that fails.

        One after the other: vLLM measures the GPU's free memory while it loads, and fails
        when another process takes some at that moment.
        """
        known = [await process.start() for process in self._processes]
        return known[0]

    async def run(
        self, batch: Batch, params: Params, *, bulk: bool = False
    ) -> tuple[Rows, Offsets]:
        """Pool all inputs, over as many processes as the request has work for."""
        free = sorted(self._processes, key=lambda process: process.tokens)
        chosen = free[: max(1, batch.tokens // self._shard_tokens)]
        if len(chosen) == 1 or batch.inputs == 1:
            return await chosen[0].run(batch, params, bulk=bulk)
        shards = split(np.diff(batch.offsets).tolist(), [1.0] * len(chosen))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(process.run(part(batch, shard), params, bulk=bulk))
                    for process, shard in zip(chosen, shards, strict=False)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return merge([task.result() for task in tasks])

    async def scrape(self) -> list[bytes]:
        """Each process's own metrics."""
        return list(await asyncio.gather(*(process.scrape() for process in self._processes)))

    def _one_died(self, died: asyncio.Future[None]) -> None:
        if not self.died.done() and (error := died.exception()) is not None:
            self.died.set_exception(error)
            # It may be that nobody waits for this one.
            self.died.exception()


def part(batch: Batch, shard: Shard) -> Batch:
    """The inputs of a shard, as a batch of their own."""
    offsets = batch.offsets[shard.start : shard.stop + 1]
    ids = batch.ids[offsets[0] : offsets[-1]]
    return Batch(ids, offsets - offsets[0], batch.seconds[shard.start : shard.stop])


def merge(parts: Sequence[tuple[NDArray[N], Offsets]]) -> tuple[NDArray[N], Offsets]:
    """The rows of contiguous shards, or the ids of their inputs, one after the other."""
    starts = np.cumsum([0, *(len(rows) for rows, _ in parts)])
    offsets = [own[1:] + start for (_, own), start in zip(parts, starts, strict=False)]
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([[0], *offsets])

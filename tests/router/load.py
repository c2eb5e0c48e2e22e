"""Calls at a steady rate, each checked, while something happens to workers and routers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import grpc

from tensorway.errors import TensorwayError
from tests.router.fakes import vector

# The vectors of texts.
Embed = Callable[..., Awaitable[Sequence[Sequence[float]]]]


class Load:
    """Calls at a steady rate; ``errors`` is what their callers saw, or what was wrong."""

    def __init__(self, embed: Embed, rate: float, batch: int = 1) -> None:
        self.errors: list[Exception] = []
        self.calls = 0
        self._embed = embed
        self._rate = rate
        self._batch = batch

    @asynccontextmanager
    async def going(self) -> AsyncIterator[Load]:
        """The load, for as long as this lasts; all its calls have ended after it."""
        ending = asyncio.Event()
        task = asyncio.create_task(self._run(ending))
        try:
            yield self
        finally:
            ending.set()
            await task

    async def until(self, calls: int) -> None:
        """Wait until so many more calls were made."""
        wanted = self.calls + calls
        while self.calls < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _run(self, ending: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as calls:
            while not ending.is_set():
                texts = [f"text {self.calls} {index}" for index in range(self._batch)]
                calls.create_task(self._call(texts))
                self.calls += 1
                await asyncio.sleep(1 / self._rate)

    async def _call(self, texts: Sequence[str]) -> None:
        try:
            answer = [list(one) for one in await self._embed(*texts)]
            assert answer == [vector(text) for text in texts]
        except (grpc.aio.AioRpcError, TensorwayError, AssertionError) as error:
            self.errors.append(error)

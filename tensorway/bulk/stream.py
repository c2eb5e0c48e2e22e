"""Many callers, one EmbedStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tensorway._client_requests import EmbedOptions, Vectors
from tensorway.client import AsyncClient
from tensorway.errors import TensorwayError


class Stream:
    """A stream of batches, each with somebody who waits for its vectors."""

    def __init__(self, client: AsyncClient, model: str, options: EmbedOptions) -> None:
        self._results = client.embed_stream(self._batches(), model=model, **options)
        self._queue: asyncio.Queue[list[str]] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[Vectors]] = {}
        self._sent = 0
        self._task = asyncio.create_task(self._run())

    @property
    def has_ended(self) -> bool:
        """Whether it takes no more batches."""
        return self._task.done()

    async def embed(self, texts: list[str]) -> Vectors:
        """The vectors of texts; raises what the batch, or the stream, ended with."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._sent] = answer
        self._sent += 1
        self._queue.put_nowait(texts)
        vectors: Vectors = await answer
        return vectors

    async def close(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async for result in self._results:
                answer = self._waiting.pop(result.index)
                if result.vectors is not None:
                    _settle(answer, result.vectors)
                elif result.error is not None:
                    _settle(answer, result.error)
        except TensorwayError as error:
            for answer in self._waiting.values():
                _settle(answer, error)
        finally:
            await self._results.aclose()

    async def _batches(self) -> AsyncIterator[list[str]]:
        while True:
            yield await self._queue.get()


def _settle(answer: asyncio.Future[Vectors], outcome: Vectors | TensorwayError) -> None:
    # Nobody waits any more when the run is about to end.
    if answer.done():
        return
    if isinstance(outcome, TensorwayError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)

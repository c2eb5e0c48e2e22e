"""Many requests over one call: bounded work in flight, answers as they finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class Drained:
    """The requests of a call until `ends` is done, which ends it between two of them."""

    def __init__(self, requests: AsyncIterator[Any], ends: asyncio.Future[None]) -> None:
        self.cut = False
        """Whether they ended before their time."""
        self._requests = aiter(requests)
        self._ends = ends

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        following = asyncio.ensure_future(anext(self._requests))
        try:
            await asyncio.wait({following, self._ends}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return following.result()
            self.cut = True
            raise StopAsyncIteration
        finally:
            following.cancel()


async def answer_each(
    requests: AsyncIterator[Q], answer: Callable[[Q], Awaitable[A]], slots: int
) -> AsyncIterator[A]:
    """Yield the answer to each request as it finishes.

    At most `slots` requests are taken and not yet yielded; a caller that stops reading its
    answers therefore stops being read. What `answer` raises ends everything.
    """
    free = asyncio.Semaphore(slots)
    answers: asyncio.Queue[A | None] = asyncio.Queue()

    async def one(request: Q) -> None:
        answers.put_nowait(await answer(request))

    async def read() -> None:
        async with asyncio.TaskGroup() as working:
            async for request in requests:
                await free.acquire()
                working.create_task(one(request))
        answers.put_nowait(None)

    async with asyncio.TaskGroup() as reading:
        reading.create_task(read())
        while (ready := await answers.get()) is not None:
            yield ready
            free.release()

"""Several pieces of work at once, of which the first failure ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order; the first failure cancels the rest, and is raised as it is.

    asyncio's TaskGroup leaves errors that refer to themselves, and with them pictures in their
    frames, until the garbage collector comes by. Here no frame keeps a task, and so an error.
    """
    tasks = [asyncio.create_task(one) for one in work]
    results: list[T] = []
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            results.append(tasks.pop(_first_failure(tasks)).result())
        while tasks:
            results.append(tasks.pop(0).result())
        return results
    finally:
        await _end(tasks)
        tasks.clear()


def _first_failure(tasks: Sequence[asyncio.Task[Any]]) -> int:
    """Place of the first that failed; 0 when none did."""
    return next((place for place, task in enumerate(tasks) if _failed(task)), 0)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        # asyncio complains of errors that nobody asked for.
        _failed(task)

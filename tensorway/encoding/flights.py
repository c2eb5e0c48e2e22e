"""Work on the same image that is shared by all who ask for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from tensorway.handoff.elements import Rows

Work = Callable[[], Coroutine[Any, Any, Rows]]


class Flights:
    """Work that is shared by all who ask for the same key while it lasts."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, asyncio.Task[Rows]] = {}
        self._waiting: Counter[bytes] = Counter()

    def __contains__(self, key: bytes) -> bool:
        return key in self._tasks

    async def join(self, key: bytes, work: Work) -> Rows:
        """The result for the key; the work ends early only when everybody left."""
        task = self._tasks.get(key) or self._start(key, work)
        self._waiting[key] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
                # Who asks next must not join what is about to be cancelled.
                self._forget(key, task)
                task.cancel()
            # An error that comes from here would refer to itself through it.
            del task

    def _start(self, key: bytes, work: Work) -> asyncio.Task[Rows]:
        task = self._tasks[key] = asyncio.create_task(work())
        task.add_done_callback(lambda _: self._forget(key, task))
        return task

    def _forget(self, key: bytes, task: asyncio.Task[Rows]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

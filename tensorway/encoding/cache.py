"""Encoded images by content: the least recently used go first, work is shared."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from tensorway.encoding import metrics
from tensorway.handoff.elements import Rows

Work = Callable[[], Coroutine[Any, Any, Rows]]


class RowCache:
    """Rows by key, at most so many bytes of them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._rows: OrderedDict[bytes, Rows] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def get(self, key: bytes) -> Rows | None:
        """The rows, which are now the most recently used; None if they are not here."""
        if key not in self._rows:
            return None
        self._rows.move_to_end(key)
        return self._rows[key]

    def put(self, key: bytes, rows: Rows) -> None:
        """Keep the rows, unless they alone are too large."""
        if key in self._rows or rows.nbytes > self._max_bytes:
            return
        self._rows[key] = rows
        self._bytes += rows.nbytes
        while self._bytes > self._max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._bytes -= oldest.nbytes
        metrics.CACHE_BYTES.set(self._bytes)


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
                task.cancel()

    def _start(self, key: bytes, work: Work) -> asyncio.Task[Rows]:
        task = self._tasks[key] = asyncio.create_task(work())
        task.add_done_callback(lambda _: self._forget(key, task))
        return task

    def _forget(self, key: bytes, task: asyncio.Task[Rows]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

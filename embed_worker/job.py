"""A request in the engine's process."""

from __future__ import annotations

import time

import numpy as np

from embed_worker.engine import Engine, Result, Rows, Work

Frames = list[bytes | memoryview]


class Job:
    """One request on its way through the engine."""

    def __init__(self, work: Work, ids: bytes, offsets: bytes, seconds: bytes) -> None:
        self.work = work
        self._ids = np.frombuffer(ids, np.int32)
        self._offsets = np.frombuffer(offsets, np.int64)
        self._seconds = np.frombuffer(seconds, np.int32)
        self._rows: list[Rows | None] = [None] * (len(self._offsets) - 1)
        self._fed = 0
        self._missing = len(self._rows)
        self._arrived = time.monotonic()
        self._taken = self._stepped = 0.0

    @property
    def fed(self) -> bool:
        """Whether the engine has all inputs."""
        return self._fed == len(self._rows)

    @property
    def next_tokens(self) -> int:
        """Tokens of the next input."""
        return self.tokens(self._fed)

    def running(self) -> list[int]:
        """The inputs that the engine has and did not finish."""
        return [i for i in range(self._fed) if self._rows[i] is None]

    def tokens(self, index: int) -> int:
        """Tokens of an input."""
        return int(self._offsets[index + 1] - self._offsets[index])

    def feed(self, engine: Engine, stepped: float) -> int:
        """Give the engine the next input; returns its tokens, raises ValueError if refused.

        `stepped` is how many seconds the engine has spent in steps until now.
        """
        index = self._fed
        if not index:
            self._taken, self._stepped = time.monotonic(), stepped
        ids = self._ids[self._offsets[index] : self._offsets[index + 1]].tolist()
        second = int(self._seconds[index]) if len(self._seconds) else None
        engine.add(f"{self.work.id}-{index}", ids, self.work.params, second)
        self._fed += 1
        return len(ids)

    def finish(self, index: int, rows: Rows) -> None:
        """Keep an input's rows."""
        self._rows[index] = rows
        self._missing -= 1

    def result(self, stepped: float) -> tuple[Result, Frames] | None:
        """The request's result once all inputs are finished."""
        if self._missing:
            return None
        rows = [r for r in self._rows if r is not None]
        matrix = np.ascontiguousarray(np.concatenate(rows), np.float32)
        splits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        head = Result(
            self.work.id,
            matrix.shape[1],
            arrived=self._arrived,
            queued=self._taken - self._arrived,
            ran=time.monotonic() - self._taken,
            stepped=stepped - self._stepped,
        )
        return head, [matrix.data.cast("B"), splits.data]

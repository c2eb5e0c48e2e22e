"""From rows to a journal, in order and with bounded memory."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from tensorway._client_requests import Vectors
from tensorway.bulk.rows import Row
from tensorway.bulk.sender import Batch
from tensorway.errors import TensorwayError

# Text in one batch, about; far below the limit of a message.
_BATCH_BYTES = 1024 * 1024
_CHECKPOINT_SECONDS = 1.0

Embed = Callable[[Sequence[Row]], Coroutine[Any, Any, Batch]]


class BadRow(Exception):
    """A row that cannot be embedded, and that nobody said to skip."""

    def __init__(self, row: Row) -> None:
        super().__init__(f"line {row.line}: {row.error}")


class Sink(Protocol):
    """Where rows and their vectors go, in order."""

    def append(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Take the next rows."""

    def checkpoint(self) -> None:
        """Make what was taken last."""


@dataclass(frozen=True)
class Limits:
    """How much is held at once."""

    batch: int = 128
    """Rows of one request."""
    in_flight: int = 16
    """Requests that are read but not written."""


async def run(
    rows: Iterator[Row],
    embed: Embed,
    sink: Sink,
    limits: Limits,
    done: Callable[[Sequence[Row]], None],
    *,
    skip_bad: bool,
) -> None:
    """Embed all rows; what is in the sink is always a prefix of them.

    Raises BadRow at the first bad row unless bad ones are skipped; those before it are kept.
    """
    try:
        await _run(rows, embed, sink, limits, done, skip_bad=skip_bad)
    except (BadRow, TensorwayError):
        # What was taken is whole; after another error, of the disk for one, it may not be.
        sink.checkpoint()
        raise
    sink.checkpoint()


async def _run(
    rows: Iterator[Row],
    embed: Embed,
    sink: Sink,
    limits: Limits,
    done: Callable[[Sequence[Row]], None],
    *,
    skip_bad: bool,
) -> None:
    saved = time.monotonic()
    async with aclosing(ordered(batched(rows, limits.batch), embed, limits.in_flight)) as work:
        async for batch in work:
            bad = None if skip_bad else _first_bad(batch.rows)
            good = batch.rows if bad is None else batch.rows[:bad]
            sink.append(good, batch.vectors[: len(good)])
            done(good)
            if bad is not None:
                raise BadRow(batch.rows[bad])
            if time.monotonic() - saved > _CHECKPOINT_SECONDS:
                await asyncio.to_thread(sink.checkpoint)
                saved = time.monotonic()


def batched(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    """The rows in batches of so many, or of about a mebibyte."""
    batch: list[Row] = []
    held = 0
    for row in rows:
        batch.append(row)
        held += len(row.source)
        if len(batch) == size or held >= _BATCH_BYTES:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


async def ordered(
    batches: Iterator[list[Row]], embed: Embed, in_flight: int
) -> AsyncGenerator[Batch, None]:
    """The batches in order, so many of them in flight at once."""
    pending: deque[asyncio.Task[Batch]] = deque()
    try:
        while True:
            # A thread reads: a slow input must not hold up the answers.
            while len(pending) < in_flight and (
                rows := await asyncio.to_thread(next, batches, None)
            ):
                pending.append(asyncio.create_task(embed(rows)))
            if not pending:
                return
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _first_bad(rows: Sequence[Row]) -> int | None:
    return next((index for index, row in enumerate(rows) if row.error), None)

"""Rows to vectors, over one stream of batches, with the bad rows found out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from tensorway._client_requests import EmbedOptions, Vectors
from tensorway.bulk.rows import Row
from tensorway.bulk.stream import Stream
from tensorway.client import AsyncClient
from tensorway.errors import (
    InvalidArgument,
    ResourceExhausted,
    TensorwayError,
    TooLarge,
    Unavailable,
)

# Pauses after which a batch that found nobody, or too much work, is sent once more. They are
# long enough for a worker that restarts.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
_NONE: Vectors = np.empty((0, 0), "<f4")
_INDEX = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class Batch:
    """Rows that are done with."""

    rows: Sequence[Row]
    vectors: Vectors
    """Of the rows that are good, [good rows, width]."""


class Sender:
    """Embeds batches of rows; an async context manager."""

    def __init__(
        self,
        client: AsyncClient,
        model: str,
        options: EmbedOptions,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._open = partial(Stream, client, model, options)
        self._pauses = pauses
        self._stream: Stream | None = None

    async def __aenter__(self) -> Self:
        """Nothing is opened before the first batch."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the stream."""
        if self._stream is not None:
            await self._stream.close()

    async def embed(self, rows: Sequence[Row]) -> Batch:
        """The vectors of the rows; a row that the model cannot take gets its error."""
        while good := [row for row in rows if not row.error]:
            try:
                return Batch(rows, await self._patient([row.text for row in good]))
            except (InvalidArgument, TooLarge) as error:
                if isinstance(error, TooLarge) and len(good) > 1:
                    return await self._halves(rows)
                rows = _marked(rows, good, error)
        return Batch(rows, _NONE)

    async def _halves(self, rows: Sequence[Row]) -> Batch:
        half = len(rows) // 2
        halves = [await self.embed(rows[:half]), await self.embed(rows[half:])]
        vectors = [part.vectors for part in halves if len(part.vectors)]
        together = np.concatenate(vectors) if vectors else _NONE
        return Batch([row for part in halves for row in part.rows], together)

    async def _patient(self, texts: list[str]) -> Vectors:
        for pause in self._pauses:
            try:
                return await self._once(texts)
            except TooLarge:
                raise
            except (ResourceExhausted, Unavailable) as error:
                await asyncio.sleep(error.retry_after or pause)
        return await self._once(texts)

    async def _once(self, texts: list[str]) -> Vectors:
        if self._stream is None or self._stream.has_ended:
            self._stream = self._open()
        return await self._stream.embed(texts)


def _marked(rows: Sequence[Row], good: Sequence[Row], error: TensorwayError) -> list[Row]:
    """The rows, with the error at the one that it is about; raises it when it is about none."""
    found = _INDEX.search(error.field)
    if found is None and len(good) > 1:
        raise error
    culprit = good[int(found[1]) if found else 0]
    why = error.message.removeprefix(f"{error.field}: ")
    return [replace(row, error=why) if row is culprit else row for row in rows]

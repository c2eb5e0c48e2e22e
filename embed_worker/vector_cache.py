"""Finished vectors by content, in front of the engine.

The key is everything that a vector depends on within one process: the token ids that the
engine would get, and how it would pool them. A text that was truncated, prefixed or sent as
token ids is therefore the text that it became.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from embed_worker import metrics
from embed_worker.engine import Params, Rows
from embed_worker.engine_group import EngineGroup
from embed_worker.tokenizer import Batch, Offsets
from tensorway.row_cache import RowCache

# What an entry takes beside its numbers: the key, the array's and the table's own memory.
_OVERHEAD_BYTES = 256


class VectorCache:
    """An engine that remembers at most so many bytes of vectors.

    An input that is in a request twice is computed once; requests that run at the same time
    do not wait for each other, and may compute the same vector both.
    """

    def __init__(self, model: str, engine: EngineGroup, max_bytes: int) -> None:
        self._model, self._engine = model, engine
        self._rows = RowCache(max_bytes, _OVERHEAD_BYTES)

    async def run(
        self, batch: Batch, params: Params, *, bulk: bool = False
    ) -> tuple[Rows, Offsets]:
        """Pool all inputs of a request, as the engine does; only new ones reach it."""
        if params.task != "embed":
            return await self._engine.run(batch, params, bulk=bulk)
        keys = content_keys(batch, params)
        known = {key: row for key in keys if (row := self._rows.get(key)) is not None}
        new = {key: index for index, key in enumerate(keys) if key not in known}
        metrics.count_cached(self._model, len(keys), len(new))
        if len(new) == batch.inputs:
            rows, offsets = await self._engine.run(batch, params, bulk=bulk)
            self._keep(keys, rows)
            return rows, offsets
        if new:
            rows, _ = await self._engine.run(chosen(batch, [*new.values()]), params, bulk=bulk)
            self._keep([*new], rows)
            known |= zip(new, rows, strict=True)
        return np.stack([known[key] for key in keys]), np.arange(len(keys) + 1)

    def _keep(self, keys: Sequence[bytes], rows: Rows) -> None:
        # What is not finite is an error of this request, and not of those to come.
        finite = np.atleast_1d(np.isfinite(rows).all(axis=1))
        for key, row, good in zip(keys, rows, finite, strict=True):
            if good:
                # A copy: a mere view would keep the request's whole matrix alive.
                self._rows.put(key, row.copy())
        metrics.CACHE_BYTES.labels(self._model).set(self._rows.bytes)


def content_keys(batch: Batch, params: Params) -> list[bytes]:
    """A key for each input that is the same for the same content, and for nothing else."""
    pooling, ids = hashlib.sha256(msgspec.msgpack.encode(params)), batch.ids.data
    return [_key(pooling, ids[at:end]) for at, end in itertools.pairwise(batch.offsets.tolist())]


def _key(pooling: Any, ids: memoryview) -> bytes:
    content = pooling.copy()
    content.update(ids)
    digest: bytes = content.digest()
    return digest


def chosen(batch: Batch, indices: Sequence[int]) -> Batch:
    """Some inputs of a batch, as a batch of their own."""
    lengths = np.diff(batch.offsets)[list(indices)]
    ids = [batch.ids[batch.offsets[index] : batch.offsets[index + 1]] for index in indices]
    return Batch(np.concatenate(ids), np.cumsum([0, *lengths], dtype=np.int64), batch.seconds[:0])

"""Rows of numbers by key, the least recently used go first; bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from numpy.typing import NDArray

Rows = NDArray[Any]


class RowCache:
    """Rows by key, at most so many bytes of them; each entry counts `overhead` bytes more."""

    def __init__(self, max_bytes: int, overhead: int = 0) -> None:
        self.bytes = 0
        self._max_bytes, self._overhead = max_bytes, overhead
        self._rows: OrderedDict[bytes, Rows] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes) -> Rows | None:
        """The rows, which are now the most recently used; None if they are not here."""
        if (rows := self._rows.get(key)) is not None:
            self._rows.move_to_end(key)
        return rows

    def put(self, key: bytes, rows: Rows) -> None:
        """Keep the rows, unless they alone are too large."""
        size = rows.nbytes + self._overhead
        if key in self._rows or size > self._max_bytes:
            return
        self._rows[key] = rows
        self.bytes += size
        while self.bytes > self._max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self.bytes -= oldest.nbytes + self._overhead

"""A tensor in pieces: cut by the sender, put together and checked by the reader."""

from __future__ import annotations

from collections.abc import Iterator

import crc32c
import numpy as np

from tensorway.errors import InvalidArgument
from tensorway.handoff import frames
from tensorway.handoff.elements import Rows
from tensorway.handoff.features import Features, digests
from tensorway.handoff.header import Layout
from tensorway.options import MIB
from tensorway.v1 import handoff_pb2

# Also what we send: asyncio works for each message, so that larger ones cost less.
MAX_CHUNK_BYTES = MIB


def cut(rows: Rows) -> Iterator[bytes]:
    """The messages that follow a header: chunks, then the end."""
    view, checksum = rows.reshape(-1).view(np.uint8).data, 0
    for offset in range(0, len(view), MAX_CHUNK_BYTES):
        data = view[offset : offset + MAX_CHUNK_BYTES]
        checksum = crc32c.crc32c(data, checksum)
        yield frames.chunk(offset, data)
    yield frames.end(handoff_pb2.EncoderResultEnd(rows=len(rows), bytes=len(view), crc32c=checksum))


class Assembly:
    """A tensor that comes in pieces; raises InvalidArgument at the first wrong one."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # Not touched until bytes come: the kernel gives the memory with the first write.
        self._buffer = np.empty(layout.nbytes, np.uint8)
        self._view = self._buffer.data
        self._received = 0
        self._checksum = 0

    @property
    def received(self) -> int:
        """Bytes so far."""
        return self._received

    def add(self, chunk: frames.Chunk) -> None:
        """Take the next piece."""
        size = len(chunk.data)
        if chunk.offset != self._received:
            _refuse("chunk.offset", self._received, chunk.offset)
        if not 1 <= size <= MAX_CHUNK_BYTES:
            _refuse("chunk.data", f"1 to {MAX_CHUNK_BYTES} bytes", f"{size} bytes")
        if (after := chunk.offset + size) > self._layout.nbytes:
            _refuse("chunk.data", f"at most {self._layout.nbytes} bytes in all", f"{after} bytes")
        self._view[chunk.offset : after] = chunk.data
        self._checksum = crc32c.crc32c(chunk.data, self._checksum)
        self._received = after

    def finish(self, end: handoff_pb2.EncoderResultEnd) -> Features:
        """The features, once all of them came, unchanged."""
        layout = self._layout
        for field, expected, got in (
            ("bytes received", layout.nbytes, self._received),
            ("end.bytes", layout.nbytes, end.bytes),
            ("end.rows", layout.shape[0], end.rows),
            ("end.crc32c", f"{self._checksum:#010x}", f"{end.crc32c:#010x}"),
        ):
            if expected != got:
                _refuse(field, expected, got)
        rows = self._buffer.view(layout.dtype).reshape(layout.shape)
        return Features(rows, layout.splits, layout.image_token_id, layout.modalities)


def check_digests(features: Features, layout: Layout) -> None:
    """Raise InvalidArgument unless each item is what its digest says (version 1)."""
    if not layout.digests:
        return
    for index, (got, expected) in enumerate(zip(digests(features), layout.digests, strict=True)):
        if got != expected:
            _refuse(f"items[{index}].digest", expected.hex(), got.hex())


def _refuse(field: str, expected: object, got: object) -> None:
    path = f"encoder_result.{field}"
    raise InvalidArgument(f"{path}: expected {expected}, got {got}", field=path)

"""Pieces of a tensor as bytes on the wire, written and read without copies.

Both streams of the contract carry a TensorChunk in field 2 and an EncoderResultEnd in
field 3, so a frame is the same in both. Through protobuf's own objects each piece would
be copied three times on each side, which costs two thirds of the throughput
(docs/handoff.md). Frames are made and read here by the encoding's own rules
(https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from tensorway.errors import InvalidArgument
from tensorway.v1 import handoff_pb2

_LENGTH = 2
_CHUNK = 2 << 3 | _LENGTH
_OFFSET = 1 << 3
_DATA = 2 << 3 | _LENGTH


class Chunk(NamedTuple):
    """A piece of a tensor."""

    offset: int
    data: memoryview


def chunk(offset: int, data: memoryview) -> bytes:
    """A message of either stream that carries a TensorChunk."""
    head = b"".join((bytes((_OFFSET,)), _varint(offset), bytes((_DATA,)), _varint(len(data))))
    return b"".join((bytes((_CHUNK,)), _varint(len(head) + len(data)), head, data))


def end(totals: handoff_pb2.EncoderResultEnd) -> bytes:
    """A message of either stream that carries an EncoderResultEnd."""
    return handoff_pb2.EncoderResultChunk(end=totals).SerializeToString()


def read(frame: bytes) -> Chunk | handoff_pb2.EncoderResultEnd | None:
    """The chunk or the end in a message of either stream; None for anything else."""
    view = memoryview(frame)
    if frame[:1] == bytes((_CHUNK,)):
        size, start = _read_varint(view, 1)
        if start + size == len(view) and (found := _read_chunk(view[start:])) is not None:
            return found
    return _read_any(frame)


def _read_chunk(view: memoryview) -> Chunk | None:
    offset, data, place = 0, view[:0], 0
    while place < len(view):
        tag, place = view[place], place + 1
        value, place = _read_varint(view, place)
        if tag == _OFFSET:
            offset = value
        elif tag == _DATA and place + value <= len(view):
            data, place = view[place : place + value], place + value
        else:
            return None
    return Chunk(offset, data)


def _read_any(frame: bytes) -> Chunk | handoff_pb2.EncoderResultEnd | None:
    try:
        message = handoff_pb2.EncoderResultChunk.FromString(frame)
    except DecodeError:
        raise InvalidArgument("the stream holds bytes that are no message of it") from None
    match message.WhichOneof("part"):
        case "chunk":
            return Chunk(message.chunk.offset, memoryview(message.chunk.data))
        case "end":
            return message.end
        case _:
            return None


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(view: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(view) and shift < 64:
        byte, place = view[place], place + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise InvalidArgument("the stream holds bytes that are no message of it")

"""Tensors in pieces: what arrives whole, and what is refused."""

from __future__ import annotations

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorway.errors import InvalidArgument
from tensorway.handoff import frames, header, stream
from tensorway.handoff.features import Features
from tensorway.v1 import generator_pb2, handoff_pb2, tensor_pb2

ACCEPTS = header.Accepts(max_bytes=1 << 24, max_images=8)


def assemble(layout: header.Layout, messages: list[bytes]) -> Features:
    """What a reader makes of the messages."""
    assembly = stream.Assembly(layout)
    for message in messages:
        match frames.read(message):
            case frames.Chunk() as chunk:
                assembly.add(chunk)
            case handoff_pb2.EncoderResultEnd() as end:
                return assembly.finish(end)
    raise AssertionError("no end")


def layout_of(features: Features, version: int = 0) -> header.Layout:
    """What the header of the features promises."""
    encoder = handoff_pb2.EncoderIdentity(model="eye", element_type=1)
    return header.read(header.write(features, version, encoder), ACCEPTS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_tensor_arrives_as_it_was(make, dtype: str) -> None:
    """Several chunks come together to the same bytes."""
    features = make(800, 500, width=1024, dtype=dtype)
    messages = list(stream.cut(features.rows))
    assert len(messages) > 2
    again = assemble(layout_of(features), messages)
    assert again.rows.tobytes() == features.rows.tobytes()
    assert (again.splits, again.image_token_id) == (features.splits, features.image_token_id)


@pytest.mark.parametrize("message", [generator_pb2.GenerateRequest, handoff_pb2.EncoderResultChunk])
def test_frames_are_the_messages_of_both_streams(make, message) -> None:
    """Protobuf reads our frames, of either stream, as the messages that they are."""
    features = make(1300, width=1024)
    *chunks, end = [message.FromString(frame) for frame in stream.cut(features.rows)]
    assert b"".join(part.chunk.data for part in chunks) == features.rows.tobytes()
    assert [part.chunk.offset for part in chunks] == [
        index * stream.MAX_CHUNK_BYTES for index in range(len(chunks))
    ]
    assert end.end.crc32c == crc32c.crc32c(features.rows.tobytes())
    assert (end.end.rows, end.end.bytes) == (1300, features.rows.nbytes)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_frames_read_what_protobuf_writes(offset: int, data: bytes) -> None:
    """A chunk is the same through our reader and through protobuf, in any field order."""
    chunk = tensor_pb2.TensorChunk(offset=offset, data=data)
    expected = handoff_pb2.EncoderResultChunk(chunk=chunk).SerializeToString()
    read = frames.read(expected)
    assert isinstance(read, frames.Chunk)
    assert (read.offset, bytes(read.data)) == (offset, data)
    ours = handoff_pb2.EncoderResultChunk.FromString(frames.chunk(offset, memoryview(data)))
    assert ours.chunk == chunk
    swapped = tensor_pb2.TensorChunk(data=data).SerializeToString() + (
        tensor_pb2.TensorChunk(offset=offset).SerializeToString()
    )
    message = handoff_pb2.EncoderResultChunk(chunk=tensor_pb2.TensorChunk.FromString(swapped))
    assert frames.read(message.SerializeToString()) == read


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    """Bytes that are no message of the stream raise InvalidArgument and nothing else."""
    try:
        frames.read(data)
    except InvalidArgument as error:
        assert "no message" in error.message  # noqa: PT017


def chunk(offset: int, size: int) -> frames.Chunk:
    """A chunk of zeros."""
    return frames.Chunk(offset, memoryview(bytes(size)))


WRONG_CHUNKS = {
    "gap": ([(0, 16), (17, 16)], "chunk.offset: expected 16, got 17"),
    "overlap": ([(0, 16), (8, 16)], "chunk.offset: expected 16, got 8"),
    "repeated": ([(0, 16), (0, 16)], "chunk.offset: expected 16, got 0"),
    "starts late": ([(1, 16)], "chunk.offset: expected 0, got 1"),
    "empty": ([(0, 0)], "chunk.data: expected 1 to 1048576 bytes, got 0 bytes"),
    "too big": ([(0, 2**20 + 1)], "chunk.data: .*got 1048577 bytes"),
    "excess": ([(0, 80), (80, 1)], "chunk.data: expected at most 80 bytes in all, got 81"),
}


@pytest.mark.parametrize(("chunks", "message"), WRONG_CHUNKS.values(), ids=WRONG_CHUNKS)
def test_wrong_chunks_are_refused(make, chunks: list[tuple[int, int]], message: str) -> None:
    """Order, gaps and sizes of chunks are checked as they come."""
    assembly = stream.Assembly(layout_of(make(5)))
    *before, last = chunks
    for offset, size in before:
        assembly.add(chunk(offset, size))
    with pytest.raises(InvalidArgument, match=message):
        assembly.add(chunk(*last))


WRONG_ENDS = {
    "rows": ({"rows": 4}, "end.rows: expected 5, got 4"),
    "bytes": ({"bytes": 79}, "end.bytes: expected 80, got 79"),
    "checksum": ({"crc32c": 1}, "end.crc32c: expected 0x.*, got 0x00000001"),
}


@pytest.mark.parametrize(("change", "message"), WRONG_ENDS.values(), ids=WRONG_ENDS)
def test_wrong_ends_are_refused(make, change: dict[str, int], message: str) -> None:
    """Totals and checksum of the end must be those of what came."""
    features = make(5)
    *chunks, end = stream.cut(features.rows)
    totals = frames.read(end)
    for name, value in change.items():
        setattr(totals, name, value)
    with pytest.raises(InvalidArgument, match=message):
        assemble(layout_of(features), [*chunks, frames.end(totals)])


def test_a_tensor_one_byte_short_is_refused(make) -> None:
    """An early end says how many bytes came."""
    features = make(5)
    assembly = stream.Assembly(layout_of(features))
    assembly.add(chunk(0, 79))
    with pytest.raises(InvalidArgument, match="bytes received: expected 80, got 79"):
        assembly.finish(handoff_pb2.EncoderResultEnd(rows=5, bytes=80))


def test_a_flipped_bit_is_noticed(make) -> None:
    """A changed byte does not pass the checksum."""
    features = make(5)
    frame, end = stream.cut(features.rows)
    changed = bytearray(frame)
    changed[-1] ^= 1
    with pytest.raises(InvalidArgument, match="crc32c"):
        assemble(layout_of(features), [bytes(changed), end])


def test_digests_are_checked_item_by_item(make) -> None:
    """An item whose rows are not what its digest says is named."""
    features = make(2, 3)
    layout = layout_of(features, version=1)
    stream.check_digests(features, layout)
    rows = features.rows.copy()
    rows[4] += 1
    changed = Features(rows, features.splits, features.image_token_id)
    with pytest.raises(InvalidArgument, match=r"items\[1\].digest: expected [0-9a-f]{64}, got"):
        stream.check_digests(changed, layout)


def test_buffers_are_not_touched_before_bytes_come() -> None:
    """A promise of gigabytes takes address space, not memory."""
    big = header.Layout((1 << 16, 8192), np.dtype(np.float32), (0, 1 << 16), 7, (), ())
    before = resident()
    assembly = stream.Assembly(big)
    assert resident() - before < 64 << 20
    assert assembly.received == 0


def resident() -> int:
    """Bytes of memory that this process really has."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096

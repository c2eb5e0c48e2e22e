"""A private view of answers in which vectors are bytes.

A packed ``repeated float`` field and a ``bytes`` field of the same number are the same
on the wire: a length, then the little-endian numbers
(https://protobuf.dev/programming-guides/encoding/#packed). The view is made from the
contract itself, so it cannot drift from it. Python code that moves vectors uses it and
never loops over floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from numpy.typing import NDArray

from tensorway.v1 import embedding_pb2, pooling_pb2

_PACKAGE = "tensorway.v1.wire"


def _bytes_view(contract: FileDescriptor, item: str, response: str) -> Any:
    """The response class, with ``embeddings[i].values`` as bytes."""
    file = descriptor_pb2.FileDescriptorProto()
    contract.CopyToProto(file)
    messages = {message.name: message for message in file.message_type}
    values = next(field for field in messages[item].field if field.name == "values")
    values.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    values.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    vectors = next(field for field in messages[response].field if field.name == "embeddings")
    vectors.type_name = f".{_PACKAGE}.{item}"
    pool = descriptor_pool.Default()
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name=f"tensorway/v1/wire/{item}.proto",
            package=_PACKAGE,
            syntax=file.syntax,
            dependency=file.dependency,
            message_type=[messages[item], messages[response]],
        )
    )
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{response}"))


# The answers, but ``embeddings[i].values`` is bytes of little-endian float32.
EmbedResponse = _bytes_view(embedding_pb2.DESCRIPTOR, "Embedding", "EmbedResponse")
TokenEmbedResponse = _bytes_view(pooling_pb2.DESCRIPTOR, "TokenEmbedding", "TokenEmbedResponse")


# Indexes below each bound take one byte more than those below the one before: 0 is not
# written at all, and then every byte holds seven bits.
_INDEX_BOUNDS = (0, 1, 1 << 7, 1 << 14, 1 << 21, 1 << 28)


def embeddings(rows: NDArray[Any], field: Literal["values", "packed"]) -> bytes:
    """The serialised ``embeddings`` of an EmbedResponse: rows [n, width], in order.

    A message object for each row costs a hundred times more than the rows themselves
    (docs/performance.md). Entries whose index takes equally many bytes have the same
    layout, so they are written as one matrix.
    """
    size = rows.shape[1] * rows.itemsize
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), size)
    parts = [
        _same_layout(data[start:stop], start, index_bytes, field)
        for index_bytes, (start, stop) in enumerate(pairwise(_INDEX_BOUNDS))
        if start < len(data)
    ]
    return b"".join(parts)


def _same_layout(data: NDArray[np.uint8], start: int, index_bytes: int, field: str) -> bytes:
    """Entries from index `start` on, all with an index of so many bytes."""
    count, size = data.shape
    entry = EmbedResponse()
    entry.embeddings.add(index=start, **{field: data[0].tobytes()})
    head = np.frombuffer(entry.SerializeToString(), np.uint8)[: -size or None]
    entries = np.empty((count, len(head) + size), np.uint8)
    entries[:, : len(head)] = head
    entries[:, len(head) :] = data
    # The index stands before the vector's own tag and length.
    place = len(head) - _varint_bytes(size) - 1 - index_bytes
    for number in range(index_bytes):
        more = 0x80 if number < index_bytes - 1 else 0
        bits = np.arange(start, start + count) >> 7 * number & 0x7F
        entries[:, place + number] = bits | more
    return entries.tobytes()


def _varint_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def merge_embeddings(answers: Sequence[bytes]) -> bytes:
    """One answer out of the answers to contiguous parts of a request, in order.

    Messages set end to end are one merged message, so vectors are copied once, and read
    where they are: merging message objects costs many times more.
    """
    tokens = [EmbedResponse.FromString(answer).usage.prompt_tokens for answer in answers]
    merged = EmbedResponse.FromString(b"".join(answers))
    merged.usage.prompt_tokens = merged.usage.total_tokens = sum(tokens)
    for index, embedding in enumerate(merged.embeddings):
        embedding.index = index
    return bytes(merged.SerializeToString())

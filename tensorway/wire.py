"""A private view of answers in which vectors are bytes.

A packed ``repeated float`` field and a ``bytes`` field of the same number are the same
on the wire: a length, then the little-endian numbers
(https://protobuf.dev/programming-guides/encoding/#packed). The view is made from the
contract itself, so it cannot drift from it. Python code that moves vectors uses it and
never loops over floats.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

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


def merge_embeddings(parts: Iterable[Any]) -> Any:
    """One answer out of the answers to contiguous parts of a request, in order."""
    merged = EmbedResponse()
    for part in parts:
        start = len(merged.embeddings)
        usage = part.usage.prompt_tokens + merged.usage.prompt_tokens
        merged.MergeFrom(part)
        merged.usage.prompt_tokens = merged.usage.total_tokens = usage
        for index in range(start, len(merged.embeddings)):
            merged.embeddings[index].index = index
    return merged

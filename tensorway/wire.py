"""A private view of an answer in which a vector is bytes.

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

from tensorway.v1 import embedding_pb2

_PACKAGE = "tensorway.v1.wire"


def _bytes_view() -> descriptor_pb2.FileDescriptorProto:
    contract = descriptor_pb2.FileDescriptorProto()
    embedding_pb2.DESCRIPTOR.CopyToProto(contract)
    messages = {message.name: message for message in contract.message_type}
    embedding, response = messages["Embedding"], messages["EmbedResponse"]
    values = next(field for field in embedding.field if field.name == "values")
    values.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    values.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    vectors = next(field for field in response.field if field.name == "embeddings")
    vectors.type_name = f".{_PACKAGE}.Embedding"
    return descriptor_pb2.FileDescriptorProto(
        name="tensorway/v1/wire.proto",
        package=_PACKAGE,
        syntax=contract.syntax,
        dependency=contract.dependency,
        message_type=[embedding, response],
    )


_POOL = descriptor_pool.Default()
_POOL.Add(_bytes_view())

# EmbedResponse, but ``embeddings[i].values`` is bytes of little-endian float32.
EmbedResponse: Any = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{_PACKAGE}.EmbedResponse")
)


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

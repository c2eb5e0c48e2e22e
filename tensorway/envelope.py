"""Private views of requests in which inputs are bytes, so that they pass unread.

An embedded message, a string and a bytes field of the same number are the same on the
wire: a length, then the content. The views are made from the contract itself.

A message can also be changed without being read: of a field that is set twice the last
one counts, so what is appended replaces what was there.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tensorway.messages import decoder
from tensorway.v1 import embedding_pb2

_PACKAGE = "tensorway.v1.envelope"
_FIELD = descriptor_pb2.FieldDescriptorProto

# Tokens an input costs before its first word: its special tokens.
INPUT_TOKENS = 2
# Bytes of text, or of varint token ids, that make about one token.
TOKEN_BYTES = 4


def _as_bytes(contract: descriptor_pb2.DescriptorProto, name: str) -> None:
    field = next(field for field in contract.field if field.name == name)
    field.type = _FIELD.TYPE_BYTES
    field.ClearField("type_name")


def _views() -> descriptor_pb2.FileDescriptorProto:
    contract = descriptor_pb2.FileDescriptorProto()
    embedding_pb2.DESCRIPTOR.CopyToProto(contract)
    messages = {message.name: message for message in contract.message_type}
    _as_bytes(messages["TextInput"], "texts")
    _as_bytes(messages["TokenInput"], "sequences")
    _as_bytes(messages["EmbedStreamRequest"], "request")
    _as_bytes(messages["EmbedStreamResponse"], "response")
    for field in messages["EmbedRequest"].field:
        if field.name in {"texts", "tokens"}:
            field.type_name = field.type_name.replace("tensorway.v1", _PACKAGE)
    return descriptor_pb2.FileDescriptorProto(
        name="tensorway/v1/envelope.proto",
        package=_PACKAGE,
        syntax=contract.syntax,
        dependency=[*contract.dependency, contract.name],
        message_type=[
            *(messages[name] for name in ("TextInput", "TokenInput", "EmbedRequest")),
            *(messages[name] for name in ("EmbedStreamRequest", "EmbedStreamResponse")),
            _message("Named", ("model", 1, "")),
            _message("First", ("start", 1, "Named")),
        ],
    )


def _message(name: str, *fields: tuple[str, int, str]) -> descriptor_pb2.DescriptorProto:
    kinds = {"": _FIELD.TYPE_STRING, "Named": _FIELD.TYPE_MESSAGE}
    return descriptor_pb2.DescriptorProto(
        name=name,
        field=[
            _FIELD(
                name=field,
                number=number,
                label=_FIELD.LABEL_OPTIONAL,
                type=kinds[kind],
                type_name=f".{_PACKAGE}.{kind}" if kind else None,
            )
            for field, number, kind in fields
        ],
    )


_POOL = descriptor_pool.Default()
_POOL.Add(_views())


def _view(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


# EmbedRequest, but ``texts.texts`` and ``tokens.sequences`` are lists of bytes.
EmbedRequest = _view("EmbedRequest")
# EmbedStreamRequest and EmbedStreamResponse, but what they carry is bytes.
EmbedStreamRequest = _view("EmbedStreamRequest")
EmbedStreamResponse = _view("EmbedStreamResponse")
# The name in every request and answer that has ``model`` as its field 1.
Named = _view("Named")
# The name in the first GenerateRequest of a stream.
First = _view("First")


# From bytes, with InvalidArgument when they are not such a message.
read_embed = decoder(EmbedRequest.FromString, "EmbedRequest")
read_stream = decoder(EmbedStreamRequest.FromString, "EmbedStreamRequest")
read_named = decoder(Named.FromString, "request")
read_first = decoder(First.FromString, "GenerateRequest")


def inputs(request: Any) -> Any:
    """The list of inputs of an EmbedRequest view, as bytes."""
    return request.tokens.sequences if request.HasField("tokens") else request.texts.texts


def tokens(count: int, size: int) -> float:
    """About how many tokens so many inputs of so many bytes in all are."""
    return count * INPUT_TOKENS + size / TOKEN_BYTES


def work(request: Any, size: int) -> float:
    """About how many tokens an EmbedRequest view is, of so many bytes."""
    return tokens(len(inputs(request)), size)


def renamed(data: bytes, model: str) -> bytes:
    """A message with another name in its field 1, without reading it."""
    return data + bytes(Named(model=model).SerializeToString())

"""Messages to bytes and back, with errors that a caller understands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from tensorway.errors import InvalidArgument, TooLarge

Codec = Callable[[Any], Any]


def same(message: Any) -> Any:
    """The message as it is."""
    return message


def decoder(parse: Codec, name: str) -> Codec:
    """A parser that answers bytes which are no such message with INVALID_ARGUMENT."""

    def decode(request: bytes) -> Any:
        try:
            return parse(request)
        except DecodeError as error:
            raise InvalidArgument(f"not a valid {name}") from error

    return decode


def encoder(serialize: Codec, max_bytes: int) -> Codec:
    """A serializer that refuses an answer over the limit, before gRPC fails to send it."""

    def encode(response: Any) -> bytes:
        data: bytes = serialize(response)
        if len(data) > max_bytes:
            sizes = f"{len(data)} bytes, {max_bytes} are allowed"
            raise TooLarge(f"the answer is too large: {sizes}; ask for less at once")
        return data

    return encode

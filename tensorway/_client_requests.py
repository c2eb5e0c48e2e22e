"""Inputs to requests that a server takes, and answers to arrays: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from tensorway.errors import InvalidArgument
from tensorway.v1 import embedding_pb2, tensor_pb2

Inputs: TypeAlias = str | Sequence[str] | Sequence[Sequence[int]]
Vectors: TypeAlias = npt.NDArray[Any]
DType = Literal["float32", "float16", "int8", "binary"]

# OpenAI's limit, and the default of our servers.
MAX_INPUTS = 2048
# Bytes that a token id takes at most in a message, and an input besides its content.
_ID_BYTES, _INPUT_BYTES = 5, 8

_TYPES: dict[DType, tuple[tensor_pb2.ElementType.ValueType, str]] = {
    "float32": (tensor_pb2.ELEMENT_TYPE_FLOAT32, "<f4"),
    "float16": (tensor_pb2.ELEMENT_TYPE_FLOAT16, "<f2"),
    "int8": (tensor_pb2.ELEMENT_TYPE_INT8, "i1"),
    "binary": (tensor_pb2.ELEMENT_TYPE_BINARY, "u1"),
}


class EmbedOptions(TypedDict, total=False):
    """Options of embedding; what is left out is for the server to decide."""

    dimensions: int
    """Numbers per vector; fewer than the model's width need Matryoshka support."""
    truncate_prompt_tokens: int
    """Cut longer inputs to so many tokens; -1: to the model's limit."""
    add_special_tokens: bool
    """Whether text gets the tokenizer's special tokens."""
    prompt_name: str
    """A named prompt of the model ("query", "document")."""
    dtype: DType
    """Type of the numbers; "binary" is eight of them in one uint8."""


def build(inputs: Inputs, model: str, options: EmbedOptions) -> embedding_pb2.EmbedRequest:
    """One request for all inputs; a string alone is one text."""
    fields: dict[str, Any] = {k: v for k, v in options.items() if k != "dtype"}
    element_type, _ = _TYPES[options.get("dtype", "float32")]
    request = embedding_pb2.EmbedRequest(model=model, element_type=element_type, **fields)
    items: Sequence[Any] = [inputs] if isinstance(inputs, str) else inputs
    if len(items) and not isinstance(items[0], str):
        _extend(request.tokens.sequences, items, lambda ids: embedding_pb2.TokenSequence(ids=ids))
    else:
        request.texts.SetInParent()
        _extend(request.texts.texts, items, lambda text: text)
    return request


def count(request: embedding_pb2.EmbedRequest) -> int:
    """Inputs of a request."""
    return len(_inputs(request))


def split(request: embedding_pb2.EmbedRequest, max_bytes: int) -> list[embedding_pb2.EmbedRequest]:
    """The request as requests of at most 2048 inputs and so many bytes, in input order."""
    sizes = [_size(item) for item in _inputs(request)]
    return [cut(request, start, stop) for start, stop in _ranges(sizes, max_bytes)]


def cut(request: embedding_pb2.EmbedRequest, start: int, stop: int) -> embedding_pb2.EmbedRequest:
    """The request with its inputs from start up to, not including, stop."""
    if (start, stop) == (0, count(request)):
        return request
    piece = embedding_pb2.EmbedRequest()
    for field, value in request.ListFields():
        if field.name not in {"texts", "tokens"}:
            setattr(piece, field.name, value)
    _inputs(piece, like=request).extend(_inputs(request)[start:stop])
    return piece


def to_array(answers: Iterable[Any], dtype: DType) -> Vectors:
    """The vectors of answers (``wire.EmbedResponse``) as one array [inputs, width].

    The numbers are copied once, as bytes, and never looked at.
    """
    vectors = [vector for answer in answers for vector in answer.embeddings]
    field = "values" if dtype == "float32" else "packed"
    data = bytearray().join(getattr(vector, field) for vector in vectors)
    return np.frombuffer(data, _TYPES[dtype][1]).reshape(len(vectors), -1)


def _extend(field: Any, items: Sequence[Any], convert: Callable[[Any], Any]) -> None:
    for index, item in enumerate(items):
        try:
            field.append(convert(item))
        except (TypeError, ValueError) as error:
            path = f"inputs[{index}]"
            expected = "expected a text, or token ids from 0, like the other inputs"
            raise InvalidArgument(f"{path}: {expected}: {error}", field=path) from None


def _ranges(sizes: Sequence[int], max_bytes: int) -> Iterator[tuple[int, int]]:
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and (index - start == MAX_INPUTS or total + size > max_bytes):
            yield start, index
            start, total = index, 0
        total += size
    yield start, len(sizes)


def _size(item: Any) -> int:
    if isinstance(item, str):
        # UTF-8 takes at most four bytes for a character; counting them would encode it twice.
        return _INPUT_BYTES + (len(item) if item.isascii() else 4 * len(item))
    return _INPUT_BYTES + _ID_BYTES * len(item.ids)


def _inputs(
    request: embedding_pb2.EmbedRequest, like: embedding_pb2.EmbedRequest | None = None
) -> Any:
    tokens = (like or request).HasField("tokens")
    return request.tokens.sequences if tokens else request.texts.texts

"""Rows of numbers to the bytes of an answer, without a loop over numbers; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from embed_worker.engine import Rows
from embed_worker.tokenizer import Field, Offsets
from tensorway import wire
from tensorway.errors import Internal, InvalidArgument
from tensorway.v1 import tensor_pb2


def _narrowed(rows: Rows, dtype: Any, name: str) -> Any:
    """The rows in a narrower type; raises InvalidArgument when that cannot hold a number."""
    with np.errstate(over="ignore"):
        narrow = rows.astype(dtype)
    if not np.isfinite(narrow).all():
        raise InvalidArgument(
            f"element_type: the vectors have numbers beyond {name}'s range, ask for float32",
            field="element_type",
        )
    return narrow


PACK: dict[int, Callable[[Rows], Any]] = {
    tensor_pb2.ELEMENT_TYPE_FLOAT32: lambda rows: rows.astype("<f4", copy=False),
    tensor_pb2.ELEMENT_TYPE_FLOAT16: lambda rows: _narrowed(rows, "<f2", "float16"),
    tensor_pb2.ELEMENT_TYPE_BFLOAT16: lambda rows: _narrowed(rows, ml_dtypes.bfloat16, "bfloat16"),
    tensor_pb2.ELEMENT_TYPE_INT8: lambda rows: np.clip(np.rint(rows * 127), -127, 127).astype("i1"),
    tensor_pb2.ELEMENT_TYPE_BINARY: lambda rows: np.packbits(rows > 0, axis=-1),
}
"""Element type -> rows [n, width] float32 to rows of that type (binary: [n, width / 8])."""


def check_finite(rows: Rows, offsets: Offsets, field: Field) -> None:
    """Raise Internal for the first input whose numbers are not all finite."""
    finite = np.isfinite(rows).all(axis=-1)
    if not finite.all():
        index = int(np.searchsorted(offsets, int(np.argmin(finite)), side="right")) - 1
        raise Internal(f"{field(index)}: the model gave NaN or infinity", reason="NOT_FINITE")


def embed_response(rows: Rows, element_type: int, **fields: Any) -> bytes:
    """A serialised EmbedResponse of vectors [n, width] float32, in input order."""
    head = wire.EmbedResponse(dimensions=rows.shape[1], element_type=element_type, **fields)
    is_float32 = element_type == tensor_pb2.ELEMENT_TYPE_FLOAT32
    vectors = wire.embeddings(PACK[element_type](rows), "values" if is_float32 else "packed")
    # Serialised messages one after the other are one message with the fields of both.
    return bytes(head.SerializeToString()) + vectors


def token_embed_response(rows: Rows, offsets: Offsets, **fields: Any) -> bytes:
    """A serialised TokenEmbedResponse of vectors [tokens, width] float32."""
    response = wire.TokenEmbedResponse(dimensions=rows.shape[1], **fields)
    for index, own in enumerate(np.split(rows.astype("<f4", copy=False), offsets[1:-1])):
        response.embeddings.add(index=index, tokens=len(own), values=own.tobytes())
    return bytes(response.SerializeToString())

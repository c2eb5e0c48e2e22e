"""Element types of a tensor as NumPy sees them; bfloat16 needs no torch for that.

All numbers are little-endian, which every machine that runs vLLM is.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tensorway.v1 import tensor_pb2

Rows = NDArray[Any]
"""Numbers of one of the element types, [rows, width]."""

DTYPES: dict[int, np.dtype[Any]] = {
    tensor_pb2.ELEMENT_TYPE_FLOAT32: np.dtype(np.float32),
    tensor_pb2.ELEMENT_TYPE_FLOAT16: np.dtype(np.float16),
    tensor_pb2.ELEMENT_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
ELEMENT_TYPES: dict[str, tensor_pb2.ElementType.ValueType] = {
    "float32": tensor_pb2.ELEMENT_TYPE_FLOAT32,
    "float16": tensor_pb2.ELEMENT_TYPE_FLOAT16,
    "bfloat16": tensor_pb2.ELEMENT_TYPE_BFLOAT16,
}
# NaN and infinity have all bits of the exponent set, and nothing else has.
_EXPONENTS = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
_BLOCK_ROWS = 1024


def element_type(dtype: np.dtype[Any]) -> tensor_pb2.ElementType.ValueType:
    """The element type of a NumPy dtype; ValueError when it is none of ours."""
    if dtype.name not in ELEMENT_TYPES:
        raise ValueError(f"dtype: expected one of {', '.join(ELEMENT_TYPES)}, got {dtype.name}")
    return ELEMENT_TYPES[dtype.name]


def name(value: int) -> str:
    """An element type for people, also one that we do not know."""
    return DTYPES[value].name if value in DTYPES else f"element type {value}"


def bits(rows: Rows) -> NDArray[Any]:
    """The same memory as unsigned integers.

    NumPy works on those without holding the interpreter lock, which it holds for bfloat16.
    """
    return rows.view(f"u{rows.dtype.itemsize}")


def converted(rows: Rows, dtype: np.dtype[Any]) -> Rows:
    """The rows in another element type, rounded to nearest even; overflow is infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return rows.astype(dtype, copy=False)


def first_not_finite(rows: Rows) -> tuple[int, int] | None:
    """Row and column of the first NaN or infinity."""
    exponent, numbers = _EXPONENTS[rows.dtype.name], bits(rows)
    for start in range(0, len(numbers), _BLOCK_ROWS):
        block = numbers[start : start + _BLOCK_ROWS]
        wrong = (block & exponent) == exponent
        if wrong.any():
            row, column = divmod(int(wrong.argmax()), rows.shape[1])
            return start + row, column
    return None

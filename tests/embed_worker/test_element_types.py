"""Vectors in other element types, against an independent computation."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest

from embed_worker import answers
from tensorway.errors import InvalidArgument
from tensorway.v1 import tensor_pb2
from tests.embed_worker.launch import Worker, rows

FLOAT16, BFLOAT16 = tensor_pb2.ELEMENT_TYPE_FLOAT16, tensor_pb2.ELEMENT_TYPE_BFLOAT16
INT8, BINARY = tensor_pb2.ELEMENT_TYPE_INT8, tensor_pb2.ELEMENT_TYPE_BINARY
TEXTS = ("hello", "hello world", "x")


def bfloat16_bits(value: float) -> int:
    """Upper half of a float32, rounded to nearest, ties to even, in plain arithmetic."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    upper, lower = bits >> 16, bits & 0xFFFF
    return upper + (lower > 0x8000 or (lower == 0x8000 and upper & 1))


def packed(values: list[float], element_type: int) -> bytes:
    """What the contract says that these numbers are as bytes."""
    match element_type:
        case tensor_pb2.ELEMENT_TYPE_FLOAT16:
            return b"".join(struct.pack("<e", value) for value in values)
        case tensor_pb2.ELEMENT_TYPE_BFLOAT16:
            return b"".join(struct.pack("<H", bfloat16_bits(value)) for value in values)
        case tensor_pb2.ELEMENT_TYPE_INT8:
            scaled = [min(max(round(value * 127), -127), 127) for value in values]
            return struct.pack(f"{len(values)}b", *scaled)
    bits = "".join("1" if value > 0 else "0" for value in values)
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))


@pytest.mark.parametrize("element_type", [FLOAT16, BFLOAT16, INT8, BINARY])
async def test_packed_vectors(worker: Worker, element_type: int) -> None:
    """Every vector is the float32 one, stored as the contract says."""
    full = await worker.embed(*TEXTS)
    request = worker.request(*TEXTS, element_type=element_type)
    answer = await worker.embedding.Embed(request)
    assert (answer.element_type, answer.dimensions) == (element_type, 8)
    for embedding, vector in zip(answer.embeddings, full, strict=True):
        assert embedding.packed == packed(vector.tolist(), element_type)
        assert not embedding.values


@pytest.mark.parametrize("element_type", [0, tensor_pb2.ELEMENT_TYPE_FLOAT32])
async def test_float32_is_the_default(worker: Worker, element_type: int) -> None:
    """Float32 is readable numbers, and the answer says which type it is."""
    answer = await worker.embedding.Embed(worker.request("a", element_type=element_type))
    assert answer.element_type == tensor_pb2.ELEMENT_TYPE_FLOAT32
    assert rows(answer).shape == (1, 8)
    assert not answer.embeddings[0].packed


async def test_binary_of_a_width_that_is_no_multiple_of_eight(worker: Worker) -> None:
    """The last byte is filled with zeros."""
    request = worker.request("hello", element_type=BINARY, dimensions=5)
    answer = await worker.embedding.Embed(request)
    (vector,) = await worker.embed("hello", dimensions=5)
    assert answer.dimensions == 5
    assert answer.embeddings[0].packed == packed(vector.tolist(), BINARY)


def test_bfloat16_rounds_to_nearest_even() -> None:
    """Ties go to the even neighbour, up and down, for both signs."""
    ties = [0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000]
    near = [0x3F807FFF, 0x3F808001, 0x00000001, 0x3F7FFFFF]
    values = np.array(ties + near, np.uint32).view(np.float32)
    got = answers.PACK[BFLOAT16](values).view(np.uint16).tolist()
    assert got == [0x3F80, 0x3F82, 0xBF80, 0xBF82, 0x3F80, 0x3F81, 0x0000, 0x3F80]
    assert got == [bfloat16_bits(value) for value in values.tolist()]


def test_random_numbers_are_stored_as_documented() -> None:
    """Ten thousand numbers of every size, against plain Python."""
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    values *= np.float32(10.0) ** np.linspace(-3, 3, 10_000, dtype=np.float32)
    for element_type in (FLOAT16, BFLOAT16, INT8, BINARY):
        got = np.asarray(answers.PACK[element_type](values)).tobytes()
        assert got == packed(values.tolist(), element_type)


@pytest.mark.parametrize(
    ("element_type", "largest", "name"),
    [
        pytest.param(FLOAT16, 65504.0, "float16", id="float16"),
        pytest.param(BFLOAT16, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), "bfloat16", id="bf"),
    ],
)
def test_numbers_beyond_a_type_are_an_error(element_type: int, largest: float, name: str) -> None:
    """A model that does not normalise may give numbers that the type cannot hold."""
    pack = answers.PACK[element_type]
    assert float(pack(np.array([[largest]], np.float32))[0, 0]) == largest
    over = np.array([[math.nextafter(largest, math.inf) * 1.002]], np.float32)
    with pytest.raises(InvalidArgument, match=f"beyond {name}'s range"):
        pack(over)

"""Headers of EncoderResult: written, and read with every claim checked.

Version 0 is the tensor, its splits and the placeholder token. Version 1 adds who made it,
what each item was made from, and a digest of each item. A reader refuses every version
that it does not know, and every field that a version does not have, so that nobody reads
one version as another.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tensorway.errors import InvalidArgument
from tensorway.handoff import elements
from tensorway.handoff.features import Features, digests
from tensorway.v1 import handoff_pb2, tensor_pb2

SCHEMA = "tensorway.encoder_result"
FORMAT = "linear_embeddings"
VERSIONS = (0, 1)
DIGEST_BYTES = 32
MODALITIES = (
    handoff_pb2.MODALITY_IMAGE,
    handoff_pb2.MODALITY_VIDEO,
    handoff_pb2.MODALITY_AUDIO,
)
_PATH = "encoder_result"


@dataclass(frozen=True)
class Accepts:
    """What a reader takes."""

    max_bytes: int
    """Largest tensor, in bytes."""
    max_images: int
    """Most images of one result."""
    hidden_size: int | None = None
    """Width of a row; None: any."""
    encoder: handoff_pb2.EncoderIdentity | None = None
    """The only encoder; None: any."""


@dataclass(frozen=True)
class Layout:
    """What a header promises, once all of it was checked."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    splits: tuple[int, ...]
    image_token_id: int
    modalities: tuple[handoff_pb2.Modality.ValueType, ...]
    digests: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


def write(
    features: Features, version: int = 0, encoder: handoff_pb2.EncoderIdentity | None = None
) -> handoff_pb2.EncoderResult:
    """The header of the features; version 1 says what made them."""
    header = handoff_pb2.EncoderResult(
        schema=SCHEMA,
        version=version,
        format=FORMAT,
        features=tensor_pb2.TensorHeader(
            element_type=elements.element_type(features.rows.dtype), shape=features.rows.shape
        ),
        row_splits=features.splits,
        image_token_id=features.image_token_id,
    )
    if version == 1:
        header.encoder.CopyFrom(encoder or handoff_pb2.EncoderIdentity())
        modalities = features.modalities or [handoff_pb2.MODALITY_IMAGE] * features.count
        for modality, digest in zip(modalities, digests(features), strict=True):
            header.items.add(modality=modality, digest=digest)
    return header


def read(header: handoff_pb2.EncoderResult, accepts: Accepts) -> Layout:
    """What the header promises; nothing is allocated for it. Raises InvalidArgument."""
    _equal("schema", SCHEMA, header.schema)
    if header.version not in VERSIONS:
        _refuse("version", f"one of {VERSIONS}", header.version)
    _equal("format", FORMAT, header.format)
    shape, dtype = _tensor(header.features, accepts)
    splits = _splits(header.row_splits, shape[0], accepts.max_images)
    (_read_0 if header.version == 0 else _read_1)(header, len(splits) - 1, accepts)
    _known_fields(header, _PATH)
    return Layout(
        shape,
        dtype,
        splits,
        header.image_token_id,
        tuple(item.modality for item in header.items),
        tuple(item.digest for item in header.items),
    )


def _tensor(
    tensor: tensor_pb2.TensorHeader, accepts: Accepts
) -> tuple[tuple[int, int], np.dtype[Any]]:
    if tensor.element_type not in elements.DTYPES:
        got = elements.name(tensor.element_type)
        _refuse("features.element_type", f"one of {', '.join(elements.ELEMENT_TYPES)}", got)
    if len(tensor.shape) != 2:
        _refuse("features.shape", "[rows, hidden size]", f"{len(tensor.shape)} dimensions")
    for index, size in enumerate(tensor.shape):
        if size < 1:
            _refuse(f"features.shape[{index}]", "at least 1", size)
    dtype, (rows, width) = elements.DTYPES[tensor.element_type], tensor.shape
    if accepts.hidden_size is not None and width != accepts.hidden_size:
        _refuse("features.shape[1]", f"the model's hidden size {accepts.hidden_size}", width)
    if (size := rows * width * dtype.itemsize) > accepts.max_bytes:
        _refuse("features.shape", f"at most {accepts.max_bytes} bytes", f"{size} bytes")
    return (rows, width), dtype


def _splits(splits: Any, rows: int, max_images: int) -> tuple[int, ...]:
    if not 2 <= len(splits) <= max_images + 1:
        _refuse("row_splits", f"2 to {max_images + 1} values", f"{len(splits)} values")
    if splits[0] != 0:
        _refuse("row_splits[0]", 0, splits[0])
    for index, (start, end) in enumerate(pairwise(splits)):
        if end <= start:
            _refuse(f"row_splits[{index + 1}]", f"more than {start} (image {index})", end)
    if splits[-1] != rows:
        _refuse(f"row_splits[{len(splits) - 1}]", f"the row count {rows}", splits[-1])
    return tuple(splits)


def _read_0(header: handoff_pb2.EncoderResult, images: int, accepts: Accepts) -> None:
    del images
    for field in ("encoder", "items"):
        if header.HasField("encoder") if field == "encoder" else header.items:
            _refuse(field, "nothing: version 0 does not have it", "a value")
    if accepts.encoder is not None:
        _refuse("version", f"1, which says that {accepts.encoder.model} made it", 0)


def _read_1(header: handoff_pb2.EncoderResult, images: int, accepts: Accepts) -> None:
    encoder = header.encoder
    if not encoder.model:
        _refuse("encoder.model", "a name", "nothing")
    if encoder.element_type not in elements.DTYPES:
        got = elements.name(encoder.element_type)
        _refuse("encoder.element_type", f"one of {', '.join(elements.ELEMENT_TYPES)}", got)
    if accepts.encoder is not None and not matches(accepts.encoder, encoder):
        _refuse("encoder", _shown(accepts.encoder), _shown(encoder))
    if len(header.items) != images:
        _refuse("items", f"one for each of {images} images", len(header.items))
    for index, item in enumerate(header.items):
        if item.modality not in MODALITIES:
            _refuse(f"items[{index}].modality", f"one of {MODALITIES}", item.modality)
        if len(item.digest) != DIGEST_BYTES:
            _refuse(f"items[{index}].digest", f"{DIGEST_BYTES} bytes", f"{len(item.digest)} bytes")


def matches(required: handoff_pb2.EncoderIdentity, encoder: handoff_pb2.EncoderIdentity) -> bool:
    """Whether an encoder is the required one; what is left empty there is not compared."""
    return all(getattr(encoder, field.name) == value for field, value in required.ListFields())


def _shown(encoder: handoff_pb2.EncoderIdentity) -> str:
    return ", ".join(f"{field.name} {value!r}" for field, value in encoder.ListFields())


def _known_fields(message: Message, path: str) -> None:
    if len(unknown := UnknownFieldSet(message)):
        number = unknown[0].field_number
        raise InvalidArgument(f"{path}: expected no unknown field, got number {number}", field=path)
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                _known_fields(part, f"{path}.{field.name}")


def _equal(field: str, expected: str, got: str) -> None:
    if got != expected:
        _refuse(field, repr(expected), repr(got))


def _refuse(field: str, expected: object, got: object) -> None:
    path = f"{_PATH}.{field}"
    raise InvalidArgument(f"{path}: expected {expected}, got {got}", field=path)

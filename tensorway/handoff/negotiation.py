"""What an encoder and a generator agree on before either works."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorway.errors import FailedPrecondition
from tensorway.handoff import elements
from tensorway.handoff.features import Features
from tensorway.handoff.header import FORMAT, VERSIONS, matches
from tensorway.v1 import generator_pb2, handoff_pb2

Target = generator_pb2.GeneratorServiceGetModelResponse


@dataclass(frozen=True)
class Agreement:
    """How a result is sent."""

    version: int = 0
    dtype: np.dtype[Any] | None = None
    """Element type to send; None: the encoder's own."""


def agree(
    encoder: handoff_pb2.EncoderIdentity,
    hidden_size: int,
    target: Target | None,
    accepted: Sequence[int] = VERSIONS,
) -> Agreement:
    """The best way that all sides can; raises FailedPrecondition saying what does not fit.

    `accepted` is what a caller in between can read; `target` is None when nobody knows
    who will read the result.
    """
    if target is None:
        return Agreement(_version(accepted, VERSIONS))
    version = _version(accepted, target.accepted_versions)
    _fits("format", FORMAT, target.accepted_formats, target)
    if hidden_size != target.hidden_size:
        raise FailedPrecondition(
            f"{target.model} needs rows of {target.hidden_size} numbers, {encoder.model} makes "
            f"rows of {hidden_size}"
        )
    if target.HasField("required_encoder") and not matches(target.required_encoder, encoder):
        needed = target.required_encoder
        raise FailedPrecondition(
            f"{target.model} takes results of {needed.model} {needed.revision} only, this is "
            f"{encoder.model} {encoder.revision}"
        )
    dtype = _dtype(encoder, target) if version > 0 else None
    sent = elements.element_type(dtype) if dtype else encoder.element_type
    _fits("element type", sent, target.accepted_element_types, target)
    return Agreement(version, dtype)


def check_count(images: int, target: Target) -> None:
    """Raise FailedPrecondition for more images than the generator takes."""
    if images > target.max_images:
        raise FailedPrecondition(
            f"{target.model} takes at most {target.max_images} images, got {images}"
        )


def check_size(features: Features, target: Target) -> None:
    """Raise FailedPrecondition for a result that the generator would refuse to receive."""
    if features.rows.nbytes > target.max_result_bytes:
        raise FailedPrecondition(
            f"{target.model} takes results of at most {target.max_result_bytes} bytes, "
            f"this one has {features.rows.nbytes}"
        )


def _version(accepted: Iterable[int], also: Iterable[int]) -> int:
    common = set(VERSIONS).intersection(accepted, also)
    if not common:
        raise FailedPrecondition(
            f"version: no common one; encoder {list(VERSIONS)}, caller {list(accepted)}, "
            f"generator {list(also)}"
        )
    return max(common)


def _dtype(encoder: handoff_pb2.EncoderIdentity, target: Target) -> np.dtype[Any]:
    """The narrower of both types: the generator converts to its own in any case."""
    ours, theirs = elements.DTYPES[encoder.element_type], elements.DTYPES[target.element_type]
    return theirs if theirs.itemsize < ours.itemsize else ours


def _fits(what: str, ours: object, theirs: Sequence[object], target: Target) -> None:
    if ours not in theirs:
        raise FailedPrecondition(f"{target.model} takes {what} {list(theirs)}, this is {ours!r}")

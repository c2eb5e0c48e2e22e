"""Features and headers that several tests need."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tensorway.handoff import header
from tensorway.handoff.features import Features
from tensorway.v1 import handoff_pb2, tensor_pb2

Make = Callable[..., Features]

IDENTITY = handoff_pb2.EncoderIdentity(
    model="eye", revision="r1", element_type=tensor_pb2.ELEMENT_TYPE_FLOAT32
)


@pytest.fixture
def make() -> Make:
    """Random features with so many rows for each image."""

    def features(
        *lengths: int, width: int = 8, dtype: str = "bfloat16", token: int = 7, seed: int = 0
    ) -> Features:
        rows = np.random.default_rng(seed).standard_normal((sum(lengths), width), np.float32)
        splits = (0, *(int(end) for end in np.cumsum(lengths)))
        return Features(rows.astype(getattr(ml_dtypes, dtype, dtype)), splits, token)

    return features


@pytest.fixture
def accepts() -> header.Accepts:
    """A reader of rows of 8 numbers."""
    return header.Accepts(max_bytes=1 << 20, max_images=4, hidden_size=8)


@pytest.fixture
def identity() -> handoff_pb2.EncoderIdentity:
    """Who made a result."""
    return IDENTITY

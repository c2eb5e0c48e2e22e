"""What encoder and generator agree on, and what they cannot."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorway.errors import FailedPrecondition
from tensorway.handoff.negotiation import Agreement, Target, agree, check_count, check_size
from tensorway.v1 import handoff_pb2, tensor_pb2

FLOAT32, BFLOAT16 = tensor_pb2.ELEMENT_TYPE_FLOAT32, tensor_pb2.ELEMENT_TYPE_BFLOAT16
ENCODER = handoff_pb2.EncoderIdentity(model="eye", revision="r1", element_type=FLOAT32)


def target(**fields: Any) -> Target:
    """A generator in bfloat16 that takes all that there is."""
    fields = {
        "model": "m",
        "hidden_size": 8,
        "element_type": BFLOAT16,
        "accepted_versions": [0, 1],
        "accepted_formats": ["linear_embeddings"],
        "accepted_element_types": [FLOAT32, BFLOAT16],
        "max_result_bytes": 1000,
        "max_images": 2,
        **fields,
    }
    return Target(**fields)


def test_the_newest_common_version_is_used() -> None:
    """Newer generators and older ones are both served."""
    narrow = np.dtype(ml_dtypes.bfloat16)
    assert agree(ENCODER, 8, target()) == Agreement(1, narrow)
    assert agree(ENCODER, 8, target(accepted_versions=[1, 2])) == Agreement(1, narrow)
    assert agree(ENCODER, 8, target(accepted_versions=[0])) == Agreement(0, None)
    assert agree(ENCODER, 8, target(), accepted=[0]) == Agreement(0, None)
    assert agree(ENCODER, 8, None, accepted=[0, 1]) == Agreement(1, None)


def test_only_a_narrower_type_is_sent_in_the_place_of_the_encoders_own() -> None:
    """A wider one would be more bytes for the same numbers."""
    encoder = handoff_pb2.EncoderIdentity(model="eye", element_type=BFLOAT16)
    wide = target(element_type=FLOAT32)
    assert agree(encoder, 8, wide).dtype == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"accepted_versions": [2, 3]}, r"version: no common one; .* generator \[2, 3\]"),
        ({"accepted_formats": ["grid"]}, r"m takes format \['grid'\], .*'linear_embeddings'"),
        ({"hidden_size": 9}, "m needs rows of 9 numbers, eye makes rows of 8"),
        ({"accepted_element_types": [2]}, "takes element type"),
        (
            {"required_encoder": handoff_pb2.EncoderIdentity(model="eye", revision="r2")},
            "takes results of eye r2 only, this is eye r1",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_work(fields: dict[str, Any], match: str) -> None:
    """FAILED_PRECONDITION names both sides."""
    with pytest.raises(FailedPrecondition, match=match):
        agree(ENCODER, 8, target(**fields))


def test_sizes_are_compared_before_sending(make) -> None:
    """A result that the generator would refuse is not sent to it."""
    check_size(make(10, 20), target())
    with pytest.raises(FailedPrecondition, match="at most 2 images, got 3"):
        check_count(3, target())
    with pytest.raises(FailedPrecondition, match="at most 1000 bytes, this one has 1600"):
        check_size(make(100), target())

"""Headers of EncoderResult: what is read back, and what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from blake3 import blake3

from tensorway.errors import InvalidArgument
from tensorway.handoff import header
from tensorway.v1 import handoff_pb2, model_pb2, tensor_pb2

Change = Callable[[handoff_pb2.EncoderResult], Any]

BFLOAT16 = tensor_pb2.ELEMENT_TYPE_BFLOAT16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_version_0_is_the_tensor_and_nothing_else(make, accepts, dtype) -> None:
    """Version 0 has the seven facts of the contract, and its reader gets them back."""
    features = make(2, 3, dtype=dtype)
    written = header.write(features)
    assert {field.name for field, _ in written.ListFields()} == {
        "schema",
        "format",
        "features",
        "row_splits",
        "image_token_id",
    }
    layout = header.read(written, accepts)
    assert (layout.shape, layout.splits, layout.image_token_id) == ((5, 8), (0, 2, 5), 7)
    assert layout.dtype == features.rows.dtype
    assert layout.nbytes == features.rows.nbytes


def test_version_1_says_who_made_it_and_what_each_item_is(make, accepts, identity) -> None:
    """Version 1 carries the encoder, each item's modality, and the digest of its rows."""
    features = make(2, 3)
    written = header.write(features, 1, identity)
    layout = header.read(written, accepts)
    assert layout.digests == tuple(
        blake3(part.tobytes()).digest() for part in (features.rows[:2], features.rows[2:])
    )
    assert layout.modalities == (handoff_pb2.MODALITY_IMAGE,) * 2
    assert written.encoder == identity


def set_(path: str, value: object) -> Change:
    """A change of one field."""

    def change(message: Any) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            message = getattr(message, parent)
        if isinstance(value, list):
            getattr(message, name)[:] = value
        else:
            setattr(message, name, value)

    return change


MALFORMED = {
    "no schema": (set_("schema", ""), "schema: expected 'tensorway.encoder_result', got ''"),
    "another schema": (set_("schema", "other"), "schema: .*got 'other'"),
    "newer version": (set_("version", 2), r"version: expected one of \(0, 1\), got 2"),
    "version 1 without its fields": (set_("version", 1), "encoder.model: expected a name"),
    "another format": (set_("format", "grid"), "format: expected 'linear_embeddings', got 'grid'"),
    "no type": (set_("features.element_type", 0), "element_type: .*got element type 0"),
    "int8": (set_("features.element_type", 4), "element_type: expected one of float32"),
    "unknown type": (set_("features.element_type", 99), "element_type: .*got element type 99"),
    "rank 1": (set_("features.shape", [5]), r"features.shape: .*got 1 dim"),
    "rank 3": (set_("features.shape", [5, 8, 1]), "features.shape: .*got 3 dim"),
    "no rows": (set_("features.shape", [0, 8]), r"features.shape\[0\]: expected at least 1, got 0"),
    "no width": (set_("features.shape", [5, 0]), r"features.shape\[1\]: expected at least 1"),
    "width - 1": (set_("features.shape", [5, 7]), r"shape\[1\]: .*hidden size 8, got 7"),
    "width + 1": (set_("features.shape", [5, 9]), r"shape\[1\]: .*hidden size 8, got 9"),
    "terabytes": (set_("features.shape", [2**40, 8]), "at most 1048576 bytes, got 17592186044416"),
    "overflow": (set_("features.shape", [2**63, 8]), "at most 1048576 bytes, got 147573952589676"),
    "no splits": (set_("row_splits", []), "row_splits: expected 2 to 5 values, got 0"),
    "one split": (set_("row_splits", [0]), "row_splits: expected 2 to 5 values, got 1"),
    "too many images": (set_("row_splits", [0, 1, 2, 3, 4, 5]), "expected 2 to 5 values, got 6"),
    "starts late": (set_("row_splits", [1, 2, 5]), r"row_splits\[0\]: expected 0, got 1"),
    "zero rows": (set_("row_splits", [0, 0, 5]), r"row_splits\[1\]: .*more than 0 \(image 0\)"),
    "out of order": (set_("row_splits", [0, 3, 2, 5]), r"row_splits\[2\]: .*more than 3"),
    "ends early": (set_("row_splits", [0, 2, 4]), r"row_splits\[2\]: .*row count 5, got 4"),
    "ends late": (set_("row_splits", [0, 2, 6]), r"row_splits\[2\]: .*row count 5, got 6"),
    "encoder in version 0": (set_("encoder.model", "x"), "encoder: .*version 0 does not have"),
    "items in version 0": (lambda message: message.items.add(), "items: .*version 0 does not"),
}


@pytest.mark.parametrize(("change", "message"), MALFORMED.values(), ids=MALFORMED)
def test_version_0_refuses(make, accepts, change: Change, message: str) -> None:
    """Every wrong header is refused with what, where, expected and got."""
    written = header.write(make(2, 3))
    change(written)
    with pytest.raises(InvalidArgument, match=message) as raised:
        header.read(written, accepts)
    assert raised.value.field.startswith("encoder_result.")


MALFORMED_1 = {
    "no encoder": (set_("encoder.model", ""), "encoder.model: expected a name, got nothing"),
    "no type": (set_("encoder.element_type", 0), "encoder.element_type: .*got element type 0"),
    "fewer items": (lambda message: message.items.pop(), "items: .*each of 2 images, got 1"),
    "no modality": (lambda m: set_("modality", 0)(m.items[1]), r"items\[1\].modality: .*got 0"),
    "short digest": (
        lambda message: set_("digest", b"x")(message.items[0]),
        r"items\[0\].digest: expected 32 bytes, got 1 bytes",
    ),
    "read as version 0": (set_("version", 0), "encoder: .*version 0 does not have"),
}


@pytest.mark.parametrize(("change", "message"), MALFORMED_1.values(), ids=MALFORMED_1)
def test_version_1_refuses(make, accepts, identity, change: Change, message: str) -> None:
    """The fields of version 1 are checked as well, and cannot pass for version 0."""
    written = header.write(make(2, 3), 1, identity)
    change(written)
    with pytest.raises(InvalidArgument, match=message):
        header.read(written, accepts)


@pytest.mark.parametrize("path", ["", "features", "encoder", "items"])
def test_unknown_fields_are_refused(make, accepts, identity, path: str) -> None:
    """A field that this version does not have is never ignored, at any depth."""
    written = header.write(make(2, 3), 1, identity)
    part: Any = getattr(written, path) if path else written
    part = part[0] if path == "items" else part
    # Any message with a field number that ours do not have.
    part.MergeFromString(model_pb2.Model(root="x").SerializeToString())
    with pytest.raises(InvalidArgument, match="expected no unknown field, got number 13"):
        header.read(written, accepts)


def test_a_required_encoder_must_have_made_the_result(make, identity) -> None:
    """A generator that trusts one encoder refuses others, and results that do not say."""
    required = handoff_pb2.EncoderIdentity(model="eye", revision="r1")
    accepts = header.Accepts(1 << 20, 4, 8, encoder=required)
    header.read(header.write(make(2), 1, identity), accepts)
    with pytest.raises(InvalidArgument, match=r"version: expected 1, .* eye made it, got 0"):
        header.read(header.write(make(2)), accepts)
    other = handoff_pb2.EncoderIdentity(model="eye", revision="r2", element_type=BFLOAT16)
    with pytest.raises(InvalidArgument, match=r"expected model 'eye', revision 'r1', got .*r2"):
        header.read(header.write(make(2), 1, other), accepts)


def test_a_claim_of_terabytes_costs_nothing(make) -> None:
    """Sizes are checked before anything is allocated."""
    written = header.write(make(1))
    written.features.shape[:] = [2**50, 8]
    tracemalloc.start()
    with pytest.raises(InvalidArgument):
        header.read(written, header.Accepts(1 << 30, 4, 8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20

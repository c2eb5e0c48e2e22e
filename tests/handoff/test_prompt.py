"""The prompt builder: where rows go, and what never reaches an engine."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorway.errors import InvalidArgument
from tensorway.handoff import frames, header, stream
from tensorway.handoff.features import Features, stacked
from tensorway.prompt import ModelShape, Prompt, build, check_placeholders
from tensorway.v1 import handoff_pb2

ENCODER = handoff_pb2.EncoderIdentity(model="eye", element_type=1)
SHAPE = ModelShape(8, 100, 64, np.dtype(ml_dtypes.bfloat16))


def test_rows_take_the_place_of_their_placeholder(make) -> None:
    """Each placeholder grows to its image's rows; text rows stay zero."""
    features = make(2, 3)
    prompt = build([5, 7, 6, 7], features, SHAPE)
    assert prompt.token_ids.tolist() == [5, 7, 7, 6, 7, 7, 7]
    assert prompt.is_token.tolist() == [True, False, False, True, False, False, False]
    assert np.array_equal(prompt.rows[[1, 2, 4, 5, 6]], features.rows)
    assert not prompt.rows[[0, 3]].any()
    assert prompt.cache_salt == ""


def test_without_images_there_are_only_tokens() -> None:
    """A prompt of text is token ids and nothing else."""
    prompt = build([5, 6], None, SHAPE)
    assert (prompt.token_ids.tolist(), prompt.is_token, prompt.rows) == ([5, 6], None, None)


@pytest.mark.parametrize("token", [100, 50_000, 2**32 - 1])
def test_a_placeholder_outside_the_vocabulary_stays_out_of_the_prompt(make, token: int) -> None:
    """Ids that penalties index by are always in the vocabulary."""
    prompt = build([5, token], make(2, token=token), SHAPE)
    assert prompt.token_ids.tolist() == [5, 0, 0]
    assert prompt.is_token.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "prompt_token_ids: expected at least one token, got none"),
        ([5, 100], r"prompt_token_ids\[1\]: expected an id in \[0, 100\), got 100"),
        ([5, 2**32 - 2, 7], r"prompt_token_ids\[1\]: .*got 4294967294"),
        ([-1, 7], r"prompt_token_ids\[0\]: .*got -1"),
        ([5, 6], "expected 1 placeholder tokens 7, one for each image, got 0"),
        ([7, 5, 7], "expected 1 placeholder tokens 7, one for each image, got 2"),
        ([7, *[5] * 62], "expected at most 63 tokens with images expanded, got 64"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(make, ids: list[int], message: str) -> None:
    """Ids, placeholders and the expanded length are checked, and the wrong one is named."""
    with pytest.raises(InvalidArgument, match=message):
        build(ids, make(2), SHAPE)


def test_the_longest_prompt_leaves_room_for_one_token(make) -> None:
    """One token less than the model's limit is taken."""
    assert len(build([7, *[5] * 61], make(2), SHAPE).token_ids) == 63


def test_rows_of_another_width_are_refused(make) -> None:
    """The width of rows is checked on the inline path, too."""
    with pytest.raises(InvalidArgument, match="expected rows of width 8, got 9"):
        build([7], make(2, width=9), SHAPE)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_numbers_that_are_not_finite_are_refused(make, dtype: str, value: float) -> None:
    """One NaN anywhere is named by row and column."""
    features = make(2000, dtype=dtype)
    features.rows[1500, 3] = value
    shape = ModelShape(8, 100, 4000, SHAPE.dtype)
    with pytest.raises(InvalidArgument, match=f"row 1500, column 3: .*bfloat16, got {value}"):
        build([7], features, shape)


def test_numbers_too_large_for_the_model_are_refused(make) -> None:
    """A float32 that float16 cannot hold would become infinity inside the model."""
    features = make(2, dtype="float32")
    features.rows[1, 0] = 1e6
    with pytest.raises(InvalidArgument, match="column 0: expected a finite float16, got 10000"):
        build([7], features, ModelShape(8, 100, 64, np.dtype(np.float16)))


def test_a_zero_row_makes_the_mask_part_of_the_cache_key(make) -> None:
    """Prompts of equal tokens and rows that differ in the mask get different salts."""
    zeros = Features(np.zeros((2, 8), SHAPE.dtype), (0, 2), 0)
    image = build([0, 5], zeros, SHAPE)
    mixed = Features(np.zeros((1, 8), SHAPE.dtype), (0, 1), 7)
    text = build([7, 5, 5], mixed, SHAPE)
    assert image.cache_salt != text.cache_salt
    assert "" not in (image.cache_salt, text.cache_salt)


def test_placeholders_are_counted_before_anything_is_encoded() -> None:
    """Too many or too few placeholders are refused with their places."""
    check_placeholders([1, 7, 2, 7], 7, 2)
    with pytest.raises(InvalidArgument, match=r"expected 1 placeholder .*got 2, at \[1, 3\]"):
        check_placeholders([1, 7, 2, 7], 7, 1)
    with pytest.raises(InvalidArgument, match=r"expected 0 placeholder .*got 1"):
        check_placeholders([1, 7], 7, 0)


def through_the_wire(features: Features, version: int) -> Features:
    """The features after a header and chunks."""
    accepts = header.Accepts(1 << 24, 16, 8)
    layout = header.read(header.write(features, version, ENCODER), accepts)
    assembly = stream.Assembly(layout)
    for message in stream.cut(features.rows):
        part = frames.read(message)
        if isinstance(part, frames.Chunk):
            assembly.add(part)
        else:
            return assembly.finish(part)
    raise AssertionError("no end")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(0, 99).filter(lambda token: token != 7), max_size=20),
    st.sampled_from(["bfloat16", "float16", "float32"]),
    st.sampled_from([0, 1]),
    st.randoms(use_true_random=False),
)
def test_inline_and_external_prompts_are_equal(lengths, text, dtype, version, random) -> None:
    """Both paths make the same prompt, byte for byte."""
    seed = np.random.default_rng(random.getrandbits(32))
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    artifacts = [seed.standard_normal((rows, 8)).astype(dtype) for rows in lengths]
    features = stacked(artifacts, 7)
    ids = list(text)
    for _ in lengths:
        ids.insert(random.randint(0, len(ids)), 7)
    inline = build(ids, features, SHAPE)
    external = build(ids, through_the_wire(features, version), SHAPE)
    assert same(inline, external)


def same(one: Prompt, other: Prompt) -> bool:
    """Whether two prompts are equal in every byte."""
    return (
        one.token_ids.tobytes() == other.token_ids.tobytes()
        and one.is_token.tobytes() == other.is_token.tobytes()
        and one.rows.tobytes() == other.rows.tobytes()
        and one.cache_salt == other.cache_salt
    )

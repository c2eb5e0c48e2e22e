"""The prompt that a model receives: tokens, and rows in the place of images.

One builder for the encoder in the generator's process and for the one far away: same
inputs, same prompt, byte for byte. Pure, and off the event loop when there is much of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorway.errors import InvalidArgument
from tensorway.handoff.elements import Rows, bits
from tensorway.handoff.features import Features, settle

_FIELD = "prompt_token_ids"
_SHOWN = 8


@dataclass(frozen=True)
class ModelShape:
    """What a prompt must fit."""

    hidden_size: int
    vocab_size: int
    """Valid ids are below it."""
    max_model_len: int
    """Longest prompt plus answer in tokens."""
    dtype: np.dtype[Any]
    """Element type of prompt embeddings."""


@dataclass(frozen=True)
class Prompt:
    """vLLM's mixed prompt; without images only the tokens."""

    token_ids: NDArray[np.int64]
    is_token: NDArray[np.bool_] | None = None
    """Where the token counts; elsewhere the row does."""
    rows: Rows | None = None
    """[tokens, hidden size]; zero where the token counts."""
    cache_salt: str = ""
    """Keeps apart prompts that a prefix cache would take for equal; mostly empty."""


@dataclass(frozen=True)
class Slots:
    """Where a prompt has images."""

    ids: NDArray[np.int64]
    """The tokens, one placeholder for each image."""
    places: NDArray[np.intp]
    """Positions of the placeholders."""


def check(
    token_ids: Sequence[int], shape: ModelShape, image_token_id: int, splits: Sequence[int]
) -> Slots:
    """Raise InvalidArgument unless the tokens and images fit each other and the model.

    `splits` says how many rows each image has, as in :class:`Features`; the rows
    themselves are not needed, so that nobody has to send them in vain.
    """
    ids = _checked_ids(token_ids, shape, image_token_id)
    places = np.flatnonzero(ids == image_token_id)
    if len(places) != len(splits) - 1:
        raise _wrong_count(image_token_id, len(splits) - 1, places.tolist())
    _check_length(len(ids) - len(places) + splits[-1], shape)
    return Slots(ids, places)


def build(token_ids: Sequence[int], features: Features | None, shape: ModelShape) -> Prompt:
    """The prompt, each placeholder replaced by its image's rows; raises InvalidArgument."""
    if features is None:
        ids = _checked_ids(token_ids, shape, None)
        _check_length(len(ids), shape)
        return Prompt(ids)
    slots = check(token_ids, shape, features.image_token_id, features.splits)
    if (width := features.rows.shape[1]) != shape.hidden_size:
        raise InvalidArgument(
            f"encoder_result: expected rows of width {shape.hidden_size}, got {width}",
            field="encoder_result",
        )
    return _mixed(slots, settle(features, shape.dtype), shape)


def check_placeholders(token_ids: Sequence[int], image_token_id: int, images: int) -> None:
    """Raise InvalidArgument unless there is one placeholder for each image."""
    places = [index for index, token in enumerate(token_ids) if token == image_token_id]
    if len(places) != images:
        raise _wrong_count(image_token_id, images, places)


def _mixed(slots: Slots, features: Features, shape: ModelShape) -> Prompt:
    ids, lengths = slots.ids, np.ones(len(slots.ids), np.int64)
    lengths[slots.places] = np.diff(features.splits)
    is_token = np.repeat(ids != features.image_token_id, lengths)
    starts = (np.cumsum(lengths) - lengths)[slots.places]
    rows = np.zeros((len(is_token), shape.hidden_size), shape.dtype)
    target, source = bits(rows), bits(features.rows)
    for place, (start, end) in zip(starts, pairwise(features.splits), strict=True):
        target[place : place + end - start] = source[start:end]
    # An encoder's placeholder may lie outside the vocabulary, and then must not reach code
    # that indexes by token, such as penalties.
    expanded = np.where(ids < shape.vocab_size, ids, 0)
    return Prompt(np.repeat(expanded, lengths), is_token, rows, _cache_salt(source, is_token))


def _cache_salt(image_rows: NDArray[Any], is_token: NDArray[np.bool_]) -> str:
    """Something to tell apart prompts that differ only in the mask.

    vLLM's prefix cache compares tokens and rows. Text rows are zero, so these tell where
    images are, unless an image has a zero row itself; only then is the mask needed too.
    """
    if image_rows.any(axis=1).all():
        return ""
    return hashlib.sha256(np.packbits(is_token).tobytes()).hexdigest()


def _checked_ids(
    token_ids: Sequence[int], shape: ModelShape, placeholder: int | None
) -> NDArray[np.int64]:
    if not len(token_ids):
        raise InvalidArgument(f"{_FIELD}: expected at least one token, got none", field=_FIELD)
    _check_length(len(token_ids), shape)
    ids = np.fromiter(token_ids, np.int64, len(token_ids))
    wrong = (ids < 0) | (ids >= shape.vocab_size)
    if placeholder is not None:
        wrong &= ids != placeholder
    if wrong.any():
        field = f"{_FIELD}[{int(wrong.argmax())}]"
        raise InvalidArgument(
            f"{field}: expected an id in [0, {shape.vocab_size}), got {ids[wrong.argmax()]}",
            field=field,
        )
    return ids


def _wrong_count(image_token_id: int, images: int, places: Sequence[int]) -> InvalidArgument:
    return InvalidArgument(
        f"{_FIELD}: expected {images} placeholder tokens {image_token_id}, one for each image, "
        f"got {len(places)}, at {list(places[:_SHOWN])}",
        field=_FIELD,
    )


def _check_length(length: int, shape: ModelShape) -> None:
    # One place must be left for an answer.
    if length >= shape.max_model_len:
        raise InvalidArgument(
            f"{_FIELD}: expected at most {shape.max_model_len - 1} tokens with images expanded, "
            f"got {length}",
            field=_FIELD,
        )

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


def build(token_ids: Sequence[int], features: Features | None, shape: ModelShape) -> Prompt:
    """The prompt, each placeholder replaced by its image's rows; raises InvalidArgument."""
    if features is None:
        ids = _checked_ids(token_ids, None, shape)
        _check_length(len(ids), shape)
        return Prompt(ids)
    ids = _checked_ids(token_ids, features.image_token_id, shape)
    slots = np.flatnonzero(ids == features.image_token_id)
    if len(slots) != features.count:
        raise InvalidArgument(
            f"prompt_token_ids: expected {features.count} placeholder tokens "
            f"{features.image_token_id}, one for each image, got {len(slots)}",
            field="prompt_token_ids",
        )
    if features.rows.shape[1] != shape.hidden_size:
        raise InvalidArgument(
            f"encoder_result: expected rows of width {shape.hidden_size}, "
            f"got {features.rows.shape[1]}",
            field="encoder_result",
        )
    _check_length(len(ids) - len(slots) + len(features.rows), shape)
    return _mixed(ids, slots, settle(features, shape.dtype), shape)


def check_placeholders(token_ids: Sequence[int], image_token_id: int, images: int) -> None:
    """Raise InvalidArgument unless there is one placeholder for each image."""
    places = [index for index, token in enumerate(token_ids) if token == image_token_id]
    if len(places) != images:
        raise InvalidArgument(
            f"prompt_token_ids: expected {images} placeholder tokens {image_token_id}, one for "
            f"each image, got {len(places)}, at {places[:8]}",
            field="prompt_token_ids",
        )


def _mixed(
    ids: NDArray[np.int64], slots: NDArray[np.intp], features: Features, shape: ModelShape
) -> Prompt:
    lengths = np.ones(len(ids), np.int64)
    lengths[slots] = np.diff(features.splits)
    is_token = np.repeat(ids != features.image_token_id, lengths)
    starts = (np.cumsum(lengths) - lengths)[slots]
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
    token_ids: Sequence[int], placeholder: int | None, shape: ModelShape
) -> NDArray[np.int64]:
    if not len(token_ids):
        raise InvalidArgument(
            "prompt_token_ids: expected at least one token, got none", field="prompt_token_ids"
        )
    ids = np.fromiter(token_ids, np.int64, len(token_ids))
    wrong = (ids < 0) | (ids >= shape.vocab_size)
    if placeholder is not None:
        wrong &= ids != placeholder
    if wrong.any():
        index = int(wrong.argmax())
        field = f"prompt_token_ids[{index}]"
        raise InvalidArgument(
            f"{field}: expected an id in [0, {shape.vocab_size}), got {ids[index]}", field=field
        )
    return ids


def _check_length(length: int, shape: ModelShape) -> None:
    # One place must be left for an answer.
    if length >= shape.max_model_len:
        raise InvalidArgument(
            f"prompt_token_ids: expected at most {shape.max_model_len - 1} tokens with images "
            f"expanded, got {length}",
            field="prompt_token_ids",
        )

"""Features of images as both paths see them: an encoder in this process, or far away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3

from tensorway.errors import InvalidArgument
from tensorway.handoff.elements import Rows, converted, first_not_finite
from tensorway.v1 import handoff_pb2


@dataclass(frozen=True)
class Features:
    """What an encoder made of the images of one request."""

    rows: Rows
    """Rows of all images, one under the other, [rows, hidden size], C-contiguous."""
    splits: tuple[int, ...]
    """Image i owns rows[splits[i]:splits[i + 1]]."""
    image_token_id: int
    """The token that stands for one image in the prompt."""
    modalities: tuple[handoff_pb2.Modality.ValueType, ...] = ()
    """What each item was made from; empty: all are images."""

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.splits) - 1

    def items(self) -> Iterator[Rows]:
        """Each image's own rows."""
        for start, end in zip(self.splits, self.splits[1:], strict=False):
            yield self.rows[start:end]


def stacked(artifacts: Sequence[Rows], image_token_id: int) -> Features:
    """One packed tensor out of each image's rows, in order."""
    splits = (0, *(int(end) for end in np.cumsum([len(rows) for rows in artifacts])))
    rows = artifacts[0] if len(artifacts) == 1 else np.concatenate(artifacts)
    return Features(np.ascontiguousarray(rows), splits, image_token_id)


def digests(features: Features) -> list[bytes]:
    """BLAKE3 of each image's rows; SHA-256 would take longer than the transfer."""
    return [blake3(rows.view(np.uint8).data).digest() for rows in features.items()]


def settle(features: Features, dtype: np.dtype[Any]) -> Features:
    """The features in the element type of a model, all of them finite in it.

    A model that is given NaN answers with the same token for ever.
    """
    rows = converted(features.rows, dtype)
    if (place := first_not_finite(rows)) is not None:
        row, column = place
        raise InvalidArgument(
            f"encoder_result: row {row}, column {column}: expected a finite {dtype.name}, "
            f"got {features.rows[row, column]}",
            field="encoder_result",
        )
    return Features(rows, features.splits, features.image_token_id, features.modalities)

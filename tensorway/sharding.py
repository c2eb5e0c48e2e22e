"""A batch cut into contiguous shards, and put together again: pure functions."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tensorway import envelope
from tensorway.errors import TensorwayError


@dataclass(frozen=True)
class Shard:
    """Inputs ``start`` up to, not including, ``stop`` of a request."""

    start: int
    stop: int


def split(sizes: Sequence[float], weights: Sequence[float]) -> list[Shard]:
    """Cut inputs of these sizes into one shard per weight, in proportion to the weights.

    Every input is in exactly one shard and no shard is empty, so there are fewer shards
    than weights when there are fewer inputs.
    """
    count = min(len(sizes), len(weights))
    ends = list(accumulate(sizes))
    shares = list(accumulate(weights[:count]))
    cuts = [0]
    for number, share in enumerate(shares[:-1], start=1):
        cut = bisect_left(ends, ends[-1] * share / shares[-1]) + 1
        # At least one input here, and one for each shard that is still to come.
        cuts.append(min(max(cut, cuts[-1] + 1), len(sizes) - count + number))
    return [Shard(start, stop) for start, stop in zip(cuts, [*cuts[1:], len(sizes)], strict=True)]


def part(request: Any, shard: Shard) -> bytes:
    """One shard of an EmbedRequest view, as a request of its own."""
    piece = envelope.EmbedRequest()
    kept = envelope.inputs(request)[shard.start : shard.stop]
    for field, value in request.ListFields():
        if field.name not in {"texts", "tokens"}:
            setattr(piece, field.name, value)
    (piece.tokens.sequences if request.HasField("tokens") else piece.texts.texts).extend(kept)
    return bytes(piece.SerializeToString())


def shift(error: TensorwayError, start: int) -> TensorwayError:
    """A shard's error with the input's index in the whole request.

    The first ``[index]`` of the field path is the input's; the message names the same path.
    """
    if start and error.field:
        moved = re.sub(r"\[(\d+)\]", lambda m: f"[{int(m[1]) + start}]", error.field, count=1)
        error.message = error.message.replace(error.field, moved)
        error.args, error.field = (error.message,), moved
    return error

"""Answers as JSON; no Python code loops over the numbers of vectors here."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response, StreamingResponse

# Numbers made into JSON in one go, about 10 ms: other requests wait for no longer.
_SLICE = 256 * 1024
_TYPE = "application/json"


def to_json(value: Any) -> bytes:
    """A value, which may hold arrays, as JSON."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def small(value: Any) -> Response:
    """An answer that is made at once."""
    return Response(to_json(value), media_type=_TYPE)


def listed(
    items: Sequence[Any], item: Callable[[Any], dict[str, Any]], numbers: int, rest: dict[str, Any]
) -> Response:
    """OpenAI's list of items with about so many numbers each; a long one is sent in slices."""
    rows = max(1, _SLICE // max(1, numbers))
    slices = _slices(items, item, rows, rest)
    if len(items) <= rows:
        return Response(b"".join(slices), media_type=_TYPE)
    return StreamingResponse(_in_turns(slices), media_type=_TYPE)


def usage(answer: Any) -> dict[str, int]:
    """What a request cost."""
    return {
        "prompt_tokens": answer.usage.prompt_tokens,
        "total_tokens": answer.usage.total_tokens,
    }


def floats(values: bytes) -> Any:
    """Little-endian float32 as an array, which becomes a list of numbers."""
    return np.frombuffer(values, "<f4")


def base64(values: bytes) -> orjson.Fragment:
    """The same bytes as a base64 string."""
    # What base64 writes needs no escaping, so it skips orjson's check of strings.
    return orjson.Fragment(b'"%b"' % binascii.b2a_base64(values, newline=False))


def _slices(
    items: Sequence[Any], item: Callable[[Any], dict[str, Any]], rows: int, rest: dict[str, Any]
) -> Iterator[bytes]:
    yield b'{"object":"list","data":['
    for start in range(0, len(items), rows):
        data = to_json([item(each) for each in items[start : start + rows]])
        yield (b"," if start else b"") + data[1:-1]
    yield b"]," + to_json(rest)[1:]


async def _in_turns(slices: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in slices:
        yield part
        await asyncio.sleep(0)

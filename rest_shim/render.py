"""An answer with vectors as JSON; no Python code loops over floats here."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response, StreamingResponse

_NUMPY = orjson.OPT_SERIALIZE_NUMPY
# Numbers made into JSON in one go, about 10 ms: other requests wait for no longer.
_SLICE = 256 * 1024


def respond(answer: Any, *, base64: bool) -> Response:
    """The answer in OpenAI's shape; ``answer`` is a ``wire.EmbedResponse``."""
    rows = max(1, _SLICE // max(1, answer.dimensions))
    slices = _slices(answer, rows, base64=base64)
    if len(answer.embeddings) <= rows:
        return Response(b"".join(slices), media_type="application/json")
    return StreamingResponse(_in_turns(slices), media_type="application/json")


async def _in_turns(slices: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in slices:
        yield part
        await asyncio.sleep(0)


def _slices(answer: Any, rows: int, *, base64: bool) -> Iterator[bytes]:
    encode = _base64 if base64 else _floats
    yield b'{"object":"list","data":['
    for start in range(0, len(answer.embeddings), rows):
        data = [
            {"object": "embedding", "index": vector.index, "embedding": encode(vector.values)}
            for vector in answer.embeddings[start : start + rows]
        ]
        yield (b"," if start else b"") + orjson.dumps(data, option=_NUMPY)[1:-1]
    usage = {
        "prompt_tokens": answer.usage.prompt_tokens,
        "total_tokens": answer.usage.total_tokens,
    }
    yield b"]," + orjson.dumps({"model": answer.model, "usage": usage})[1:]


def _floats(values: bytes) -> Any:
    return np.frombuffer(values, "<f4")


def _base64(values: bytes) -> orjson.Fragment:
    # What base64 writes needs no escaping, so it skips orjson's check of strings.
    return orjson.Fragment(b'"%b"' % binascii.b2a_base64(values, newline=False))

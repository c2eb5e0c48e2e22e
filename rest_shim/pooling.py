"""POST /v1/classify and /v1/pooling, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from tensorway.v1 import pooling_pb2

from .inputs import to_fields
from .render import base64, floats, listed, usage
from .schema import ClassifyRequest, PoolingRequest, decode, decoder
from .token_ids import ToText
from .upstream import Upstream

# Terms that a sparse vector has at most, about.
_TERMS = 1024


class Pooling:
    """The handlers; ``strict`` refuses fields that the API does not know."""

    def __init__(self, upstream: Upstream, to_text: ToText | None, *, strict: bool) -> None:
        self._upstream = upstream
        self._to_text = to_text
        self._classify = decoder(ClassifyRequest, strict=strict)
        self._pool = decoder(PoolingRequest, strict=strict)

    async def classify(self, request: Request) -> Response:
        """A score for each class of each input."""
        body = decode(self._classify, await request.body())
        message = pooling_pb2.ClassifyRequest(
            model=body.model,
            **to_fields(body.input, self._to_text),
            truncate_prompt_tokens=body.truncate_prompt_tokens,
        )
        answer = await self._upstream.call("Classify", message, request.headers)
        rest = {"model": answer.model, "usage": usage(answer)}
        return listed(answer.classifications, _classification, len(answer.labels), rest)

    async def pool(self, request: Request) -> Response:
        """One vector for each token of each input, or weights of vocabulary terms."""
        body = decode(self._pool, await request.body())
        body.check()
        if body.task == "sparse_embed":
            return await self._sparse(body, request.headers)
        return await self._token(body, request.headers)

    async def _token(self, body: PoolingRequest, headers: Headers) -> Response:
        message = pooling_pb2.TokenEmbedRequest(
            model=body.model,
            **to_fields(body.input, self._to_text),
            dimensions=body.dimensions,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            add_special_tokens=body.add_special_tokens,
        )
        answer = await self._upstream.call("TokenEmbed", message, headers)

        def item(vectors: Any) -> dict[str, Any]:
            if body.encoding_format == "base64":
                data = base64(vectors.values)
            else:
                data = floats(vectors.values).reshape(vectors.tokens, answer.dimensions)
            return {"index": vectors.index, "object": "pooling", "data": data}

        longest = max((vectors.tokens for vectors in answer.embeddings), default=1)
        rest = {"model": answer.model, "usage": usage(answer)}
        return listed(answer.embeddings, item, longest * answer.dimensions, rest)

    async def _sparse(self, body: PoolingRequest, headers: Headers) -> Response:
        message = pooling_pb2.SparseEmbedRequest(
            model=body.model,
            **to_fields(body.input, self._to_text),
            truncate_prompt_tokens=body.truncate_prompt_tokens,
        )
        answer = await self._upstream.call("SparseEmbed", message, headers)
        rest = {"model": answer.model, "usage": usage(answer)}
        return listed(answer.embeddings, _terms, _TERMS, rest)


def _classification(found: pooling_pb2.Classification) -> dict[str, Any]:
    probs = np.array(found.probs, np.float32)
    shown = {"index": found.index, "label": found.label, "probs": probs}
    return {**shown, "num_classes": len(probs)}


def _terms(found: pooling_pb2.SparseEmbedding) -> dict[str, Any]:
    indices, values = np.array(found.indices, np.uint32), np.array(found.values, np.float32)
    data = {"indices": indices, "values": values}
    return {"index": found.index, "object": "pooling", "data": data}

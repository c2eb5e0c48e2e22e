"""POST /v1/embeddings: the data path, from OpenAI's body to gRPC and back."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tensorway.v1 import embedding_pb2

from .inputs import to_fields
from .render import base64, floats, listed, usage
from .schema import EmbeddingRequest, decode, decoder
from .token_ids import ToText
from .upstream import Upstream


class Embeddings:
    """The handler; ``strict`` refuses fields that the API does not know."""

    def __init__(self, upstream: Upstream, to_text: ToText | None, *, strict: bool) -> None:
        self._upstream = upstream
        self._to_text = to_text
        self._decoder = decoder(EmbeddingRequest, strict=strict)

    async def create(self, request: Request) -> Response:
        """Vectors for the inputs, as floats or as base64."""
        body = decode(self._decoder, await request.body())
        message = to_message(body, self._to_text)
        answer = await self._upstream.call("Embed", message, request.headers)
        encode = base64 if body.encoding_format == "base64" else floats

        def item(vector: Any) -> dict[str, Any]:
            return {
                "object": "embedding",
                "index": vector.index,
                "embedding": encode(vector.values),
            }

        rest = {"model": answer.model, "usage": usage(answer)}
        return listed(answer.embeddings, item, answer.dimensions, rest)


def to_message(body: EmbeddingRequest, to_text: ToText | None) -> embedding_pb2.EmbedRequest:
    """The body as a gRPC request; raises InvalidArgument for what is not offered."""
    body.check()
    return embedding_pb2.EmbedRequest(
        model=body.model,
        **to_fields(body.input, to_text),
        dimensions=body.dimensions,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        add_special_tokens=body.add_special_tokens,
        prompt_name=body.prompt_name or "",
    )

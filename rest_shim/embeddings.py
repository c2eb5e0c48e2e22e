"""POST /v1/embeddings: the data path, from OpenAI's body to gRPC and back."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tensorway.v1 import embedding_pb2

from .inputs import to_texts_or_ids
from .render import respond
from .schema import EmbeddingRequest, StrictEmbeddingRequest, decode
from .upstream import Upstream


class Embeddings:
    """The handler; ``strict`` refuses fields that the API does not know."""

    def __init__(self, upstream: Upstream, *, strict: bool) -> None:
        self._upstream = upstream
        self._decoder: msgspec.json.Decoder[EmbeddingRequest] = msgspec.json.Decoder(
            StrictEmbeddingRequest if strict else EmbeddingRequest
        )

    async def create(self, request: Request) -> Response:
        """Vectors for the inputs, as floats or as base64."""
        body = decode(self._decoder, await request.body())
        answer = await self._upstream.embed(to_message(body), request.headers)
        return respond(answer, base64=body.encoding_format == "base64")


def to_message(body: EmbeddingRequest) -> embedding_pb2.EmbedRequest:
    """The body as a gRPC request."""
    texts, ids = to_texts_or_ids(body.input)
    sequences = [embedding_pb2.TokenSequence(ids=sequence) for sequence in ids]
    return embedding_pb2.EmbedRequest(
        model=body.model,
        # Without any input this stays an empty list of texts, which the worker refuses.
        texts=None if ids else embedding_pb2.TextInput(texts=texts),
        tokens=embedding_pb2.TokenInput(sequences=sequences) if ids else None,
        dimensions=body.dimensions,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        add_special_tokens=body.add_special_tokens,
        prompt_name=body.prompt_name or "",
    )

"""A small real service that the tests of the shared core call; ``program.py`` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from tensorway.handlers import Service
from tensorway.v1 import (
    embedding_pb2,
    encoder_pb2,
    handoff_pb2,
    tensor_pb2,
)

EMBED = "tensorway.v1.EmbeddingService/Embed"
EMBED_STREAM = "tensorway.v1.EmbeddingService/EmbedStream"
ENCODE = "tensorway.v1.EncoderService/Encode"

Embed = Callable[[embedding_pb2.EmbedRequest, Any], Awaitable[embedding_pb2.EmbedResponse]]


async def echo(request: embedding_pb2.EmbedRequest, context: Any) -> embedding_pb2.EmbedResponse:
    """An answer of the model's name alone."""
    return embedding_pb2.EmbedResponse(model=request.model)


@dataclass
class Fake:
    """One unary, one server-streaming and one bidirectional RPC around one function."""

    embed: Embed = echo
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a streaming call's generator is closed."""

    async def Embed(
        self, request: embedding_pb2.EmbedRequest, context: Any
    ) -> embedding_pb2.EmbedResponse:
        """Unary."""
        return await self.embed(request, context)

    async def EmbedStream(
        self, requests: AsyncIterator[embedding_pb2.EmbedStreamRequest], context: Any
    ) -> AsyncIterator[embedding_pb2.EmbedStreamResponse]:
        """Bidirectional."""
        async for request in requests:
            response = await self.embed(request.request, context)
            yield embedding_pb2.EmbedStreamResponse(response=response)

    async def Encode(
        self, request: encoder_pb2.EncodeRequest, context: Any
    ) -> AsyncIterator[handoff_pb2.EncoderResultChunk]:
        """Server-streaming: two chunks, then what ``embed`` makes of the request, forever."""
        try:
            for _ in range(2):
                yield chunk(b"first")
            while True:
                answer = await self.embed(embedding_pb2.EmbedRequest(model=request.model), context)
                yield chunk(answer.model.encode())
        finally:
            self.ended.set()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Nothing."""
        return
        yield

    def services(self, **options: Any) -> tuple[Service, Service]:
        """The services, to be given to a server."""
        embedding = embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"]
        encoder = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"]
        return Service(embedding, self, **options), Service(encoder, self, **options)


def chunk(data: bytes) -> handoff_pb2.EncoderResultChunk:
    """One message of an encoder's stream."""
    return handoff_pb2.EncoderResultChunk(chunk=tensor_pb2.TensorChunk(data=data))


async def never(request: embedding_pb2.EmbedRequest, context: Any) -> embedding_pb2.EmbedResponse:
    """No answer, until cancelled."""
    await asyncio.Event().wait()
    raise AssertionError


async def code(call: Awaitable[object]) -> grpc.StatusCode:
    """How a call ends."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK

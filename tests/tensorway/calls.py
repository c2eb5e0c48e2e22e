"""One call of each kind to the test service, and functions for it that fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc, encoder_pb2, encoder_pb2_grpc
from tests.tensorway.services import EMBED, EMBED_STREAM, ENCODE

Call = Callable[[grpc.aio.Channel], Awaitable[Any]]


async def unary(channel: grpc.aio.Channel, **options: Any) -> Any:
    """One unary call."""
    stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
    return await stub.Embed(pb.EmbedRequest(model="m"), **options)


async def bidirectional(channel: grpc.aio.Channel, **options: Any) -> Any:
    """The answers to two messages of a stream, the second sent after the first answer."""
    call = embedding_pb2_grpc.EmbeddingServiceStub(channel).EmbedStream(**options)
    answers = []
    for _ in range(2):
        await call.write(pb.EmbedStreamRequest(request=pb.EmbedRequest(model="m")))
        answers.append(await call.read())
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    return answers


async def server_streaming(channel: grpc.aio.Channel, **options: Any) -> Any:
    """The third message of a stream, which comes after two good ones."""
    stub = encoder_pb2_grpc.EncoderServiceStub(channel)
    call, seen = stub.Encode(encoder_pb2.EncodeRequest(model="m"), **options), 0
    try:
        async for answer in call:
            seen += 1
            if seen == 3:
                return answer
    finally:
        # A task that is cancelled while gRPC still sends the request leaves the call open.
        call.cancel()
    raise AssertionError


KINDS = pytest.mark.parametrize(
    ("call", "method"),
    [(unary, EMBED), (bidirectional, EMBED_STREAM), (server_streaming, ENCODE)],
    ids=["unary", "bidirectional", "mid-stream"],
)


def raising(error: BaseException) -> Any:
    """A function of a service that fails."""

    async def fail(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        raise error

    return fail

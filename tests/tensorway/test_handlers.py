"""What every call gets, whatever its kind: errors, theirs and ours, and bad bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tensorway import errors
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.calls import KINDS, Call, raising, unary
from tests.tensorway.services import EMBED, EMBED_STREAM, Fake


@KINDS
async def test_domain_errors_reach_the_client(
    serving: Any, call: Call, method: str, rpcs: Any
) -> None:
    """The client reads back the error that was raised, in every kind of call."""
    error = errors.NotFound("model 'm' is unknown; known: 'a', 'b', ünïcode", field="model")
    async with serving(*Fake(raising(error)).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel)
    read = errors.from_rpc_error(caught.value)
    assert caught.value.details() == error.message
    assert (type(read), vars(read)) == (errors.NotFound, vars(error))
    assert rpcs(method, "NOT_FOUND") == 1


@KINDS
async def test_unknown_errors_are_logged_whole_and_answered_vaguely(
    serving: Any, call: Call, method: str, rpcs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers learn nothing about our insides; the log has the traceback."""
    async with serving(*Fake(raising(KeyError("secret"))).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error"
    assert "secret" not in str(caught.value.trailing_metadata())
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError]
    assert rpcs(method, "INTERNAL") == 1


@KINDS
@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.NOT_FOUND]
)
async def test_an_upstreams_error_is_passed_on(
    serving: Any, call: Call, method: str, code: grpc.StatusCode
) -> None:
    """What the next hop said is what our caller hears, its CANCELLED too."""
    upstream = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="up")
    async with serving(*Fake(raising(upstream)).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel)
    assert (caught.value.code(), caught.value.details()) == (code, "up")


async def test_an_upstreams_details_pass_two_hops(serving: Any) -> None:
    """Field, reason and retry delay survive a relay."""
    error = errors.ResourceExhausted("busy", retry_after=2.5)
    async with serving(*Fake(raising(error)).services()) as worker:

        async def relay(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
            return await embedding_pb2_grpc.EmbeddingServiceStub(worker).Embed(request)

        async with serving(*Fake(relay).services()) as router:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(router)
    assert vars(errors.from_rpc_error(caught.value)) == vars(error)


async def test_the_first_error_of_a_group_is_the_calls(serving: Any) -> None:
    """A task group's children fail a call like the call itself."""

    async def embed(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        async with asyncio.TaskGroup() as group:
            group.create_task(raising(errors.InvalidArgument("texts[1]: empty"))(request, context))
            group.create_task(asyncio.sleep(60))
        raise AssertionError

    async with serving(*Fake(embed).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_long_message_is_cut_and_not_lost(serving: Any) -> None:
    """Over 8 KiB, gRPC would answer RESOURCE_EXHAUSTED in place of the error."""
    error = errors.NotFound("unknown; known: " + "模型, " * 5000)
    async with serving(*Fake(raising(error)).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert (caught.value.details() or "").endswith("...")


async def test_abort_keeps_its_code(
    serving: Any, rpcs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A servicer that is not ours ends a call by abort, which is no error of ours."""

    async def embed(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        await context.abort(grpc.StatusCode.NOT_FOUND, "theirs")

    async with serving(*Fake(embed).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)
    assert caught.value.details() == "theirs"
    assert rpcs(EMBED, "NOT_FOUND") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "data", [b"\x0a\xff\xff", b"\x0a\x02\xff\xfe", b"\xff"], ids=["length", "utf-8", "tag"]
)
async def test_bytes_that_are_no_message(serving: Any, rpcs: Any, data: bytes) -> None:
    """Bad bytes are the caller's mistake, not an unknown error of ours."""

    async def stream() -> AsyncIterator[bytes]:
        yield data

    async with serving(*Fake().services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as unary_error:
            await channel.unary_unary(f"/{EMBED}")(data)
        with pytest.raises(grpc.aio.AioRpcError) as stream_error:
            [_ async for _ in channel.stream_stream(f"/{EMBED_STREAM}")(stream())]
    for caught, name in ((unary_error, "EmbedRequest"), (stream_error, "EmbedStreamRequest")):
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == f"not a valid {name}"
    assert rpcs(EMBED, "INVALID_ARGUMENT") == rpcs(EMBED_STREAM, "INVALID_ARGUMENT") == 1


async def test_unknown_method(serving: Any) -> None:
    """An RPC that nobody serves gets gRPC's own answer."""
    async with serving(*Fake().services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/tensorway.v1.EmbeddingService/Nope")(b"")
    assert type(errors.from_rpc_error(caught.value)) is errors.Unimplemented


async def test_messages_may_stay_bytes(serving: Any) -> None:
    """A codec of None hands the bytes through, which is how a router forwards."""

    async def embed(request: Any, context: Any) -> Any:
        assert type(request) is bytes
        return pb.EmbedResponse(model=pb.EmbedRequest.FromString(request).model).SerializeToString()

    services = Fake(embed).services(codecs={"Embed": (None, None)})
    async with serving(*services) as channel:
        assert (await unary(channel)).model == "m"

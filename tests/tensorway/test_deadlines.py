"""Calls that end before their work does: by a deadline, or because the caller left."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from tensorway.options import ListenOptions
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import encoder_pb2, encoder_pb2_grpc
from tests.tensorway.calls import KINDS, bidirectional, raising, unary
from tests.tensorway.services import EMBED, ENCODE, Fake, never


async def test_default_deadline(serving: Any, rpcs: Any) -> None:
    """A unary call that sets no deadline still ends."""
    options = ListenOptions(default_timeout=0.05)
    async with serving(*Fake(never).services(), options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.details() == "no answer within 0.05 s"
    assert rpcs(EMBED, "DEADLINE_EXCEEDED") == 1


async def test_the_callers_deadline_beats_the_default(serving: Any) -> None:
    """A caller that is willing to wait longer may."""

    async def slow(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        await asyncio.sleep(0.2)
        return pb.EmbedResponse(model="late")

    options = ListenOptions(default_timeout=0.05)
    async with serving(*Fake(slow).services(), options=options) as channel:
        assert (await unary(channel, timeout=30)).model == "late"


async def test_streams_have_no_default_deadline(serving: Any) -> None:
    """A stream may last; its caller sets the deadline."""

    async def slow(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        await asyncio.sleep(0.1)
        return pb.EmbedResponse(model="late")

    options = ListenOptions(default_timeout=0.05)
    async with serving(*Fake(slow).services(), options=options) as channel:
        assert len(await bidirectional(channel)) == 2


async def test_a_timeout_inside_a_call_is_not_the_default_one(serving: Any) -> None:
    """A step's own timeout does not claim that the whole call took too long."""
    async with serving(*Fake(raising(TimeoutError())).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.details() == "a step of the call took too long"


@KINDS
async def test_an_expired_call_is_counted_as_such(
    serving: Any, call: Any, method: str, rpcs: Any
) -> None:
    """A deadline that passes looks like a cancellation to a server; metrics tell them apart."""
    async with serving(*Fake(never).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert rpcs(method, "DEADLINE_EXCEEDED") == 1


@KINDS
async def test_a_caller_that_cancels(serving: Any, call: Any, method: str, rpcs: Any) -> None:
    """The work of a call that was cancelled is cancelled, and nothing else ends."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def embed(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        started.set()
        try:
            return await never(request, context)
        finally:
            cancelled.set()

    async with serving(*Fake(embed).services()) as channel:
        task = asyncio.create_task(call(channel))
        await started.wait()
        task.cancel()
        await asyncio.wait_for(cancelled.wait(), 5)
    assert rpcs(method, "CANCELLED") == 1


async def test_a_reader_that_leaves_while_messages_are_written(
    serving: Any, rpcs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A generator whose reader left while a message was sent is closed, in its own task."""
    fake = Fake()
    fake.embed = lambda request, context: asyncio.sleep(0, pb.EmbedResponse(model="x" * (1 << 20)))
    async with serving(*fake.services()) as channel:
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)
        call = stub.Encode(encoder_pb2.EncodeRequest(model="m"))
        await call.read()
        # Nothing is read, so that the server waits in the middle of a write.
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.wait_for(fake.ended.wait(), 5)
    assert rpcs(ENCODE, "CANCELLED") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

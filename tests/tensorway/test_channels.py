"""What both ends of every hop agree on: message sizes, keepalive, reconnection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tensorway import errors
from tensorway.channels import Dialer, server_arguments
from tensorway.options import MAX_MESSAGE_MIB, MIB, DialOptions, ListenOptions
from tensorway.serving import Server
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc, encoder_pb2, encoder_pb2_grpc
from tests.tensorway.services import EMBED, ENCODE, Fake

SERVER, CLIENT = 3, 5
"""Different limits in MiB, so that a message passes one end and not the other."""


def of_size(size: int) -> pb.EmbedRequest:
    """A request of exactly so many bytes; larger than 16 KiB."""
    padding = len(pb.EmbedRequest(model="x" * size).SerializeToString()) - size
    request = pb.EmbedRequest(model="x" * (size - padding))
    assert request.ByteSize() == size
    return request


@asynccontextmanager
async def hop(fake: Fake, server: int, client: int) -> AsyncIterator[grpc.aio.Channel]:
    """A server and a client with their own limits, in MiB."""
    dialer = Dialer(DialOptions(dial_max_message_mib=client))
    async with (
        Server(ListenOptions(max_message_mib=server), fake.services()) as listening,
        dialer.open(f"127.0.0.1:{listening.port}") as channel,
    ):
        yield channel


async def embed(channel: grpc.aio.Channel, request: pb.EmbedRequest) -> pb.EmbedResponse:
    """One call."""
    return await embedding_pb2_grpc.EmbeddingServiceStub(channel).Embed(request)


async def refused(channel: grpc.aio.Channel, request: pb.EmbedRequest) -> errors.TensorwayError:
    """The error of one call, which is for a size."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await embed(channel, request)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = errors.from_rpc_error(caught.value)
    assert type(error) is errors.TooLarge
    assert errors.http_status(error) == 413
    return error


def answering(size: int) -> Fake:
    """A service whose answers are of exactly so many bytes."""
    data = of_size(size).SerializeToString()

    async def answer(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        return pb.EmbedResponse.FromString(data)

    return Fake(answer)


async def small(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
    """A small answer to a request of any size."""
    return pb.EmbedResponse(model="small")


async def test_requests_at_the_servers_limit() -> None:
    """A request of the limit passes; one byte more is refused with both sizes."""
    async with hop(Fake(small), SERVER, CLIENT) as channel:
        assert (await embed(channel, of_size(SERVER * MIB))).model == "small"
        error = await refused(channel, of_size(SERVER * MIB + 1))
    assert f"{SERVER * MIB + 1} vs. {SERVER * MIB}" in error.message


async def test_requests_at_the_clients_limit() -> None:
    """The client refuses to send what is over its own limit."""
    async with hop(Fake(small), CLIENT, SERVER) as channel:
        assert (await embed(channel, of_size(SERVER * MIB))).model == "small"
        error = await refused(channel, of_size(SERVER * MIB + 1))
    assert f"{SERVER * MIB + 1} vs. {SERVER * MIB}" in error.message


async def test_answers_at_the_servers_limit(rpcs: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An answer over the limit is counted as refused, and is no error in the log."""
    async with hop(answering(SERVER * MIB), SERVER, CLIENT) as channel:
        assert (await embed(channel, pb.EmbedRequest())).ByteSize() == SERVER * MIB
    async with hop(answering(SERVER * MIB + 1), SERVER, CLIENT) as channel:
        error = await refused(channel, pb.EmbedRequest())
    assert f"{SERVER * MIB + 1} bytes, {SERVER * MIB} are allowed" in error.message
    assert rpcs(EMBED, "OK") == rpcs(EMBED, "RESOURCE_EXHAUSTED") == 1
    assert caplog.text == ""


async def test_answers_at_the_clients_limit() -> None:
    """A client with a smaller limit than its server's hears both sizes."""
    async with hop(answering(SERVER * MIB), CLIENT, SERVER) as channel:
        assert (await embed(channel, pb.EmbedRequest())).ByteSize() == SERVER * MIB
    async with hop(answering(SERVER * MIB + 1), CLIENT, SERVER) as channel:
        error = await refused(channel, pb.EmbedRequest())
    assert f"{SERVER * MIB + 1} vs. {SERVER * MIB}" in error.message


async def test_a_streams_message_over_the_limit(rpcs: Any) -> None:
    """A large message in the middle of a stream ends it with the same error."""
    fake = answering(SERVER * MIB)
    async with hop(fake, SERVER, CLIENT) as channel:
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [_ async for _ in stub.Encode(encoder_pb2.EncodeRequest())]
    assert type(errors.from_rpc_error(caught.value)) is errors.TooLarge
    assert rpcs(ENCODE, "RESOURCE_EXHAUSTED") == 1


async def test_the_default_limit_holds_a_full_batch() -> None:
    """2048 vectors of 4096 numbers pass with the defaults of both ends; gRPC's 4 MiB do not."""
    size = 2048 * 4096 * 4
    async with hop(answering(size), MAX_MESSAGE_MIB, MAX_MESSAGE_MIB) as channel:
        assert (await embed(channel, pb.EmbedRequest())).ByteSize() == size
    assert ListenOptions().max_message_mib == DialOptions().dial_max_message_mib == MAX_MESSAGE_MIB


async def test_a_silent_call_is_not_cut_off() -> None:
    """A client that pings every 10 s, as often as gRPC lets it, keeps a silent call for 45 s.

    A server with gRPC's own minimum of 5 min answers the third ping with GOAWAY.
    """
    async with Server(ListenOptions(), ()) as server:
        often = (("grpc.keepalive_time_ms", 10_000), ("grpc.http2.max_pings_without_data", 0))
        address = f"127.0.0.1:{server.port}"
        async with grpc.aio.insecure_channel(address, options=often) as channel:
            call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            await call.read()
            silent = asyncio.ensure_future(call.read())
            await asyncio.wait({silent}, timeout=45)
            assert not silent.done()
            call.cancel()
            await asyncio.wait({silent})


def test_keepalive_settings_agree() -> None:
    """A client pings no more often than a server allows, or it is cut off."""
    client = dict(Dialer(DialOptions())._arguments)
    server = dict(server_arguments(1))
    allowed = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_time_ms"] >= allowed
    # A silent call, or no call at all, is pinged too, and without a bound on their number.
    assert client["grpc.keepalive_permit_without_calls"] == 1
    assert server["grpc.keepalive_permit_without_calls"] == 1
    assert client["grpc.http2.max_pings_without_data"] == 0


def test_a_client_comes_back_soon() -> None:
    """A restarted server is found again within seconds, not within gRPC's two minutes."""
    client = dict(Dialer(DialOptions())._arguments)
    assert client["grpc.initial_reconnect_backoff_ms"] <= 1000
    assert client["grpc.max_reconnect_backoff_ms"] <= 5000

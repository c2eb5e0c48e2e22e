"""Health, reflection, ports, and how a server comes and goes inside a process."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tensorway.channels import Dialer
from tensorway.flags import BadFlag
from tensorway.options import DialOptions, ListenOptions
from tensorway.retry import is_reset
from tensorway.serving import Server, Stop
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.services import EMBED, Fake, never

States = health_pb2.HealthCheckResponse
SERVICE = "tensorway.v1.EmbeddingService"


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    """What a health check says."""
    stub = health_pb2_grpc.HealthStub(channel)
    status: int = (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status
    return status


async def reflected(channel: grpc.aio.Channel) -> set[str]:
    """The services that reflection lists."""
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    answer = await stub.ServerReflectionInfo(iter([request])).read()
    return {service.name for service in answer.list_services_response.service}


async def test_health_follows_readiness() -> None:
    """A server is alive at once, but serves only once it says so, for each of its services."""
    async with (
        Server(ListenOptions(), Fake().services()) as server,
        Dialer(DialOptions()).open(f"127.0.0.1:{server.port}") as channel,
    ):
        for name in ("", SERVICE):
            assert await health(channel, name) == States.NOT_SERVING
        await server.set_serving()
        for name in ("", SERVICE):
            assert await health(channel, name) == States.SERVING
        await server.set_serving(False)
        assert await health(channel) == States.NOT_SERVING


async def test_health_of_an_unknown_service(serving: Any) -> None:
    """The health protocol wants NOT_FOUND for a name that is not served."""
    async with serving(*Fake().services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(channel, "nope.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_everything(serving: Any) -> None:
    """The tool grpcurl finds our services, and the standard ones, without a proto file."""
    async with serving(*Fake().services()) as channel:
        assert await reflected(channel) == {
            SERVICE,
            "tensorway.v1.EncoderService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }


async def test_reflection_can_be_turned_off(serving: Any) -> None:
    """Without reflection its RPC does not exist."""
    options = ListenOptions(reflection=False)
    async with serving(*Fake().services(), options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflected(channel)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_second_server_on_a_port_fails() -> None:
    """By default gRPC would let it take half of the first one's calls, silently."""
    async with Server(ListenOptions(), ()) as first:
        with pytest.raises(
            BadFlag, match=f"cannot listen on 127.0.0.1:{first.port}: Address already in use"
        ):
            async with Server(ListenOptions(port=first.port), ()):
                pass


async def test_an_address_that_is_not_ours() -> None:
    """An address of another machine, or a name that nobody knows, is refused with the reason."""
    for host, reason in (("192.0.2.1", "Cannot assign"), ("nowhere.invalid", "not known|failure")):
        with pytest.raises(
            BadFlag, match=f"--host and --port: cannot listen on {host}:0: .*{reason}"
        ):
            async with Server(ListenOptions(host=host), ()):
                pass


async def test_ipv6() -> None:
    """An IPv6 address needs no brackets in the flag."""
    async with (
        Server(ListenOptions(host="::1"), ()) as server,
        Dialer(DialOptions()).open(f"[::1]:{server.port}") as channel,
    ):
        assert await health(channel) == States.NOT_SERVING


@pytest.mark.parametrize(
    ("host", "warns"), [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)]
)
async def test_plaintext_that_others_can_reach_warns(
    caplog: pytest.LogCaptureFixture, host: str, warns: bool
) -> None:
    """Plaintext is for this machine alone, unless somebody decides otherwise."""
    async with Server(ListenOptions(host=host), ()):
        pass
    assert ("plaintext on" in caplog.text) is warns


async def test_the_next_server_gets_the_port_at_once() -> None:
    """A restart does not wait for old connections to time out."""
    async with (
        Server(ListenOptions(), Fake().services()) as first,
        Dialer(DialOptions()).open(f"127.0.0.1:{first.port}") as channel,
    ):
        await embedding_pb2_grpc.EmbeddingServiceStub(channel).Embed(pb.EmbedRequest())
    async with Server(ListenOptions(port=first.port), ()) as second:
        assert second.port == first.port


async def test_leaving_by_an_error_does_not_wait(rpcs: Any) -> None:
    """When the engine is gone, nothing is won by waiting for its calls."""
    arrived = asyncio.Event()

    async def embed(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        arrived.set()
        return await never(request, context)

    server = await Server(ListenOptions(grace=60), Fake(embed).services()).__aenter__()
    async with Dialer(DialOptions()).open(f"127.0.0.1:{server.port}") as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        call = stub.Embed(pb.EmbedRequest())
        await arrived.wait()
        await asyncio.wait_for(server.__aexit__(RuntimeError, RuntimeError(), None), 10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert rpcs(EMBED, "UNAVAILABLE") == 1


async def test_a_client_leaves_a_server_that_stops(caplog: pytest.LogCaptureFixture) -> None:
    """At once when it waits for nothing, and soon when it does; what it waits for is answered."""
    arrived, release = asyncio.Event(), asyncio.Event()

    async def embed(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        arrived.set()
        await release.wait()
        return pb.EmbedResponse(model="answered")

    server = await Server(ListenOptions(), Fake(embed).services()).__aenter__()
    address, alone = f"127.0.0.1:{server.port}", (("grpc.use_local_subchannel_pool", 1),)
    dialer = Dialer(DialOptions())
    async with dialer.open(address, *alone) as waiting, dialer.open(address, *alone) as idle:
        await idle.channel_ready()
        call = embedding_pb2_grpc.EmbeddingServiceStub(waiting).Embed(pb.EmbedRequest())
        await arrived.wait()
        leaving = asyncio.create_task(server.__aexit__(None, None, None))
        await refused_by_the_system(idle)
        await refused_by_the_system(waiting, told_to_go=True)
        assert not leaving.done()
        release.set()
        assert (await call).model == "answered"
        await leaving
    # To be refused is no error of the server.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def refused_by_the_system(channel: grpc.aio.Channel, *, told_to_go: bool = False) -> None:
    """Wait until calls do not reach the server any more.

    What a client that is told to go sends before it hears that, gRPC resets.
    """
    said: str | None = ""
    async with asyncio.timeout(20):
        while "Connection refused" not in str(said):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await embedding_pb2_grpc.EmbeddingServiceStub(channel).Embed(pb.EmbedRequest())
            refused = caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert refused or (told_to_go and is_reset(caught.value))
            said = caught.value.details()
            await asyncio.sleep(0.01)


async def test_stop_interrupts_work() -> None:
    """A signal during a long start ends the start; without one, its result comes through."""
    stop = Stop()
    assert await stop.unless(asyncio.sleep(0, "loaded")) == "loaded"
    load = asyncio.create_task(stop.unless(asyncio.sleep(60, "loaded")))
    await asyncio.sleep(0)
    stop.ask()
    stop.ask(RuntimeError("too late to matter"))
    assert await load is None
    await stop.wait()


async def test_stop_with_an_error() -> None:
    """The error that stops a service is what its wait raises, every time."""
    stop = Stop()
    stop.ask(RuntimeError("engine died"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="engine died"):
            await stop.wait()


async def test_start_and_port_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With port 0 the log is where a person finds the port."""
    with caplog.at_level(logging.INFO):
        async with Server(ListenOptions(), ()) as server:
            assert f"listening on 127.0.0.1:{server.port}" in caplog.text

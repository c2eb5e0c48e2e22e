"""Whether a worker that was ejected answers again."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tensorway.channels import Metadata

PROBE_SECONDS = 0.5
PROBE_TIMEOUT = 1.0


async def healthy(channel: grpc.aio.Channel, metadata: Metadata = ()) -> bool:
    """Whether the server at the other end says that it serves, within a second."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(
            health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT, metadata=metadata
        )
    except (grpc.aio.AioRpcError, grpc.aio.UsageError):
        # The latter of a channel that only waits for its last calls.
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def recovered(channel: grpc.aio.Channel, probes: int, metadata: Metadata = ()) -> None:
    """Return once so many probes in a row were good, or the channel was closed."""
    good = 0
    while good < probes:
        await asyncio.sleep(PROBE_SECONDS)
        # gRPC aborts the process when a closed channel is used.
        if channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN:
            return
        good = good + 1 if await healthy(channel, metadata) else 0

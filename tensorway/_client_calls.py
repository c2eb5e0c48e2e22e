"""Calls of the client to a router or a worker, with errors as domain errors."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import grpc

from tensorway import envelope, wire
from tensorway.channels import REQUEST_ID, Dialer, Metadata
from tensorway.errors import from_rpc_error
from tensorway.options import MIB
from tensorway.retry import is_reset
from tensorway.v1 import embedding_pb2, model_pb2, model_pb2_grpc

_SERVICE = "/tensorway.v1.EmbeddingService"
EMBED, EMBED_STREAM = f"{_SERVICE}/Embed", f"{_SERVICE}/EmbedStream"

# All of these only read, so that a second try does no harm. gRPC itself tries again, with
# growing pauses, inside the caller's deadline.
_RETRIED = (
    {"service": "tensorway.v1.EmbeddingService", "method": "Embed"},
    *(
        {"service": "tensorway.v1.ModelService", "method": method}
        for method in ("ListModels", "GetModel", "ListWorkers")
    ),
)
_RETRY_POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
# Servers that may stop one after the other under one call.
_RESETS = 3
_SERVICE_CONFIG = json.dumps({"methodConfig": [{"name": _RETRIED, "retryPolicy": _RETRY_POLICY}]})


def retrying(max_message_mib: int) -> tuple[tuple[str, str | int], ...]:
    """Channel arguments that try UNAVAILABLE again, also for messages of the largest size."""
    return (
        ("grpc.service_config", _SERVICE_CONFIG),
        # A larger request than this is not kept, and so not tried again.
        ("grpc.per_rpc_retry_buffer_size", max_message_mib * MIB),
    )


class Embedder(Protocol):
    """A way to have one request answered."""

    async def embed(self, request: embedding_pb2.EmbedRequest, timeout: float) -> Any:
        """The answer as ``wire.EmbedResponse``; raises domain errors."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise failed calls as domain errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None


@contextmanager
def _passed_over() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if not is_reset(error) and from_rpc_error(error).reason != "SHUTTING_DOWN":
            raise


class Calls:
    """Calls over one channel."""

    def __init__(self, channel: grpc.aio.Channel, dialer: Dialer, token: str) -> None:
        self.models: Any = model_pb2_grpc.ModelServiceStub(channel)
        self._dialer = dialer
        self._token: Metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._embed: Any = channel.unary_unary(
            EMBED,
            request_serializer=embedding_pb2.EmbedRequest.SerializeToString,
            response_deserializer=wire.EmbedResponse.FromString,
        )
        self._stream: Any = channel.stream_stream(
            EMBED_STREAM,
            request_serializer=embedding_pb2.EmbedStreamRequest.SerializeToString,
            response_deserializer=envelope.EmbedStreamResponse.FromString,
        )

    async def embed(self, request: embedding_pb2.EmbedRequest, timeout: float) -> Any:
        """One Embed; the answer's vectors are bytes."""
        return await self.unary(self._embed, request, timeout)

    def stream(self, requests: AsyncIterator[embedding_pb2.EmbedStreamRequest]) -> Any:
        """One EmbedStream; the answers carry their response as bytes."""
        return self._stream(requests, metadata=self.metadata())

    def watch_workers(self) -> Any:
        """One WatchWorkers, for all models."""
        request = model_pb2.WatchWorkersRequest()
        return self.models.WatchWorkers(request, metadata=self.metadata())

    async def unary(self, method: Any, request: Any, timeout: float) -> Any:
        """One unary call; one that a server did not take because it stops goes to the next."""
        deadline, metadata = time.monotonic() + timeout, self.metadata()
        with translated():
            for _ in range(_RESETS):
                with _passed_over():
                    left = deadline - time.monotonic()
                    return await method(request, timeout=left, metadata=metadata)
            return await method(request, timeout=deadline - time.monotonic(), metadata=metadata)

    def metadata(self) -> Metadata:
        """Trace context, request id and token of the next call."""
        ours = self._dialer.metadata()
        named = any(key == REQUEST_ID for key, _ in ours)
        new = () if named else ((REQUEST_ID, uuid.uuid4().hex),)
        return (*ours, *new, *self._token)

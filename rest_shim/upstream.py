"""The shim's client of the router."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.datastructures import Headers

from tensorway import wire
from tensorway.channels import Dialer, Metadata
from tensorway.errors import Unavailable
from tensorway.v1 import encoder_pb2, generator_pb2, model_pb2, pooling_pb2

_EMBEDDING, _POOLING, _MODELS, _GENERATOR, _ENCODER = (
    f"/tensorway.v1.{name}Service"
    for name in ("Embedding", "Pooling", "Model", "Generator", "Encoder")
)
# Method -> its path, and the class of its answer; where there are vectors, they are bytes.
_METHODS: dict[str, tuple[str, Any]] = {
    "Embed": (_EMBEDDING, wire.EmbedResponse),
    "TokenEmbed": (_POOLING, wire.TokenEmbedResponse),
    "SparseEmbed": (_POOLING, pooling_pb2.SparseEmbedResponse),
    "Score": (_POOLING, pooling_pb2.ScoreResponse),
    "Rerank": (_POOLING, pooling_pb2.RerankResponse),
    "Classify": (_POOLING, pooling_pb2.ClassifyResponse),
    "ListModels": (_MODELS, model_pb2.ListModelsResponse),
    "GetModel": (_MODELS, model_pb2.GetModelResponse),
}
_PROBE_SECONDS = 2.0


class Upstream:
    """Calls to the router, each with our deadline and the caller's identity.

    A caller's bearer token goes on to the router unless the shim was given its own
    (``--dial-token-file``).
    """

    def __init__(
        self, target: str, dialer: Dialer, timeout: float, generate_timeout: float
    ) -> None:
        self._target = target
        self._dialer = dialer
        self._timeout = timeout
        self._generate_timeout = generate_timeout
        self._methods: dict[str, Any] = {}
        self._health: Any = None
        self._generate: Any = None
        self._generate_with_images: Any = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Hold the channel that all calls share."""
        async with self._dialer.open(self._target) as channel:
            self._open(channel)
            yield

    async def call(self, method: str, request: Any, headers: Headers) -> Any:
        """The answer of a method of the router, for the caller with these headers."""
        metadata = self._metadata(headers)
        return await self._methods[method](request, timeout=self._timeout, metadata=metadata)

    def generate(
        self, start: generator_pb2.GenerateStart, headers: Headers
    ) -> AsyncGenerator[generator_pb2.GenerateResponse, None]:
        """The answer of a generator as it comes; leaving it cancels the call."""
        request = generator_pb2.GenerateRequest(start=start)
        return self._stream(self._generate, _once(request), headers)

    def generate_with_images(
        self, request: encoder_pb2.EncoderServiceGenerateRequest, headers: Headers
    ) -> AsyncGenerator[generator_pb2.GenerateResponse, None]:
        """The answer of a generator that gets what an encoder makes of the images."""
        return self._stream(self._generate_with_images, request, headers)

    async def serving(self) -> bool:
        """Whether the router says that it takes calls; raises Unavailable if it is silent."""
        request = health_pb2.HealthCheckRequest()
        try:
            answer = await self._health.Check(request, timeout=_PROBE_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            raise Unavailable("the router does not answer in time") from error
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _open(self, channel: grpc.aio.Channel) -> None:
        self._health = health_pb2_grpc.HealthStub(channel)
        answers = generator_pb2.GenerateResponse.FromString
        self._generate = channel.stream_stream(f"{_GENERATOR}/Generate", _serialize, answers)
        self._generate_with_images = channel.unary_stream(
            f"{_ENCODER}/Generate", _serialize, answers
        )
        for method, (service, answer) in _METHODS.items():
            self._methods[method] = channel.unary_unary(
                f"{service}/{method}", _serialize, answer.FromString
            )

    async def _stream(
        self, method: Any, request: Any, headers: Headers
    ) -> AsyncGenerator[Any, None]:
        call = method(request, timeout=self._generate_timeout, metadata=self._metadata(headers))
        try:
            async for part in call:
                yield part
        finally:
            call.cancel()

    def _metadata(self, headers: Headers) -> Metadata:
        ours, token = self._dialer.metadata(), headers.get("authorization", "")
        passes = token.isascii() and token.isprintable() and token
        if not passes or any(key == "authorization" for key, _ in ours):
            return ours
        return (*ours, ("authorization", token))


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def _once(request: Any) -> AsyncIterator[Any]:
    yield request

"""The shim's client of the router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.datastructures import Headers

from tensorway import wire
from tensorway.channels import Dialer, Metadata
from tensorway.v1 import embedding_pb2, model_pb2, model_pb2_grpc

_EMBED = "/tensorway.v1.EmbeddingService/Embed"
_PROBE_SECONDS = 2.0


class Upstream:
    """Calls to the router, each with our deadline and the caller's identity.

    A caller's bearer token goes on to the router unless the shim was given its own
    (``--dial-token-file``).
    """

    _embed: Any
    _models: Any
    _health: Any

    def __init__(self, target: str, dialer: Dialer, timeout: float) -> None:
        self._target = target
        self._dialer = dialer
        self._timeout = timeout

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Hold the channel that all calls share."""
        async with self._dialer.open(self._target) as channel:
            self._open(channel)
            yield

    async def embed(self, request: embedding_pb2.EmbedRequest, headers: Headers) -> Any:
        """The answer as ``wire.EmbedResponse``: its vectors are bytes."""
        return await self._call(self._embed, request, headers)

    async def list_models(self, headers: Headers) -> list[model_pb2.Model]:
        """All models."""
        request = model_pb2.ListModelsRequest()
        return list((await self._call(self._models.ListModels, request, headers)).models)

    async def get_model(self, name: str, headers: Headers) -> model_pb2.Model:
        """One model, by name or alias."""
        request = model_pb2.GetModelRequest(model=name)
        answer: model_pb2.GetModelResponse
        answer = await self._call(self._models.GetModel, request, headers)
        return answer.model

    async def serving(self) -> bool:
        """Whether the router says that it takes calls."""
        request = health_pb2.HealthCheckRequest()
        answer = await self._health.Check(request, timeout=_PROBE_SECONDS)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _open(self, channel: grpc.aio.Channel) -> None:
        self._embed = channel.unary_unary(
            _EMBED,
            request_serializer=embedding_pb2.EmbedRequest.SerializeToString,
            response_deserializer=wire.EmbedResponse.FromString,
        )
        self._models = model_pb2_grpc.ModelServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    async def _call(self, method: Any, request: Any, headers: Headers) -> Any:
        return await method(request, timeout=self._timeout, metadata=self._metadata(headers))

    def _metadata(self, headers: Headers) -> Metadata:
        ours, token = self._dialer.metadata(), headers.get("authorization", "")
        passes = token.isascii() and token.isprintable() and token
        if not passes or any(key == "authorization" for key, _ in ours):
            return ours
        return (*ours, ("authorization", token))

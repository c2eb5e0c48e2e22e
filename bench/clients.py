"""Clients that cost little: a request is made before it is timed, and read afterwards."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp
import grpc
import numpy as np
from numpy.typing import NDArray

from bench.jobs import Target
from tensorway import wire
from tensorway.channels import message_limits
from tensorway.v1 import embedding_pb2

NAME = "m"
TIMEOUT_SECONDS = 120.0
_EMBED = "/tensorway.v1.EmbeddingService/Embed"
_JSON = {"Content-Type": "application/json"}

Vectors = NDArray[np.float32]


class Client(Protocol):
    """Asks for vectors; bytes in, bytes out."""

    def prepare(self, texts: Sequence[str]) -> bytes:
        """The request, ready to send."""

    async def call(self, request: bytes) -> bytes:
        """The answer, not yet read; raises for anything but success."""

    def vectors(self, answer: bytes) -> Vectors:
        """What is in it, [batch, width] float32."""


class GrpcClient:
    """Over our contract."""

    def __init__(self, channel: grpc.aio.Channel, method: str = _EMBED) -> None:
        # Without serialisers a call takes and gives bytes.
        self._embed = channel.unary_unary(method, None, None)

    def prepare(self, texts: Sequence[str]) -> bytes:
        """A serialised EmbedRequest."""
        given = embedding_pb2.TextInput(texts=texts)
        return embedding_pb2.EmbedRequest(model=NAME, texts=given).SerializeToString()

    async def call(self, request: bytes) -> bytes:
        """A serialised EmbedResponse."""
        answer: bytes = await self._embed(request, timeout=TIMEOUT_SECONDS)
        return answer

    def vectors(self, answer: bytes) -> Vectors:
        """Its vectors, from bytes to numbers without a loop over them."""
        items = wire.EmbedResponse.FromString(answer).embeddings
        return np.stack([np.frombuffer(item.values, "<f4") for item in items])


class HttpClient:
    """Over OpenAI's API."""

    def __init__(self, session: aiohttp.ClientSession, address: str, encoding: str) -> None:
        self._session = session
        self._url = f"http://{address}/v1/embeddings"
        self._encoding = encoding

    def prepare(self, texts: Sequence[str]) -> bytes:
        """The body as JSON."""
        body = {"model": NAME, "input": list(texts), "encoding_format": self._encoding}
        return json.dumps(body).encode()

    async def call(self, request: bytes) -> bytes:
        """The body of the answer."""
        async with self._session.post(self._url, data=request, headers=_JSON) as response:
            response.raise_for_status()
            return await response.read()

    def vectors(self, answer: bytes) -> Vectors:
        """Its vectors, from base64 or from JSON numbers."""
        return np.stack([_vector(item["embedding"]) for item in json.loads(answer)["data"]])


def _vector(value: Any) -> Vectors:
    packed = isinstance(value, str)
    return np.frombuffer(base64.b64decode(value), "<f4") if packed else np.array(value, "<f4")


@asynccontextmanager
async def client(target: Target) -> AsyncIterator[Client]:
    """A client of the target."""
    if target.kind == "grpc":
        async with grpc.aio.insecure_channel(target.address, message_limits(256)) as channel:
            yield GrpcClient(channel)
    else:
        timeout, connections = aiohttp.ClientTimeout(TIMEOUT_SECONDS), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connections) as session:
            yield HttpClient(session, target.address, target.kind)

"""EmbedStream for clients: batches in, answers out, over as many calls as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import status_pb2

from tensorway import wire
from tensorway._client_calls import Calls
from tensorway._client_requests import DType, EmbedOptions, Inputs, Vectors, build, to_array
from tensorway.errors import TensorwayError, from_rpc_error, from_status
from tensorway.retry import is_reset
from tensorway.v1 import embedding_pb2

# Calls that may break one after the other without a single answer between them.
_CALLS = 5
_PAUSE_SECONDS = 0.5
_WRITE_FAILED = "Internal error from Core"


@dataclass(frozen=True)
class BatchResult:
    """How one batch of a stream ended."""

    index: int
    """Its place among the batches, from 0."""
    vectors: Vectors | None = None
    """Its vectors [inputs, width], when it succeeded."""
    error: TensorwayError | None = None
    """Why it failed."""


class Bulk:
    """One stream of batches.

    The server reads no faster than it works, so batches are taken as they are needed. A
    call that breaks is opened again, and the batches that were not answered are sent again.
    """

    def __init__(self, calls: Calls, model: str, options: EmbedOptions) -> None:
        self._calls = calls
        self._model = model
        self._options = options
        self._dtype: DType = options.get("dtype", "float32")
        self._pending: dict[str, embedding_pb2.EmbedStreamRequest] = {}
        # One request waits here; cancelling a call that waits for the next loses none.
        self._next: asyncio.Queue[embedding_pb2.EmbedStreamRequest | None] = asyncio.Queue(1)
        self._read_all = False

    async def run(
        self, batches: AsyncIterable[Inputs] | Iterable[Inputs]
    ) -> AsyncGenerator[BatchResult, None]:
        """Yield the result of each batch as it ends, in any order."""
        reading = asyncio.create_task(self._read(batches))
        try:
            broken = 0
            while not (self._read_all and not self._pending):
                try:
                    async for result in self._one_call():
                        broken = 0
                        yield result
                except grpc.aio.AioRpcError as error:
                    broken += 1
                    if not _is_lost(error) or broken >= _CALLS:
                        raise from_rpc_error(error) from None
                    await asyncio.sleep(_PAUSE_SECONDS * broken)
            await reading
        finally:
            reading.cancel()

    async def _read(self, batches: AsyncIterable[Inputs] | Iterable[Inputs]) -> None:
        index = 0
        try:
            async for inputs in _each(batches):
                request = build(inputs, self._model, self._options)
                request.request_id, index = str(index), index + 1
                await self._next.put(embedding_pb2.EmbedStreamRequest(request=request))
        finally:
            await self._next.put(None)

    async def _one_call(self) -> AsyncIterator[BatchResult]:
        call = self._calls.stream(self._messages())
        try:
            async for answer in call:
                del self._pending[answer.request_id]
                yield self._result(answer)
        finally:
            call.cancel()

    async def _messages(self) -> AsyncIterator[embedding_pb2.EmbedStreamRequest]:
        for request in tuple(self._pending.values()):
            yield request
        while not self._read_all:
            following = await self._next.get()
            if following is None:
                self._read_all = True
                return
            self._pending[following.request.request_id] = following
            yield following

    def _result(self, answer: Any) -> BatchResult:
        index = int(answer.request_id)
        if answer.HasField("error"):
            status = status_pb2.Status.FromString(answer.error.SerializeToString())
            return BatchResult(index, error=from_status(status))
        response = wire.EmbedResponse.FromString(answer.response)
        return BatchResult(index, to_array([response], self._dtype))


def _is_lost(error: grpc.aio.AioRpcError) -> bool:
    # A write that meets the end of its call hides the status that the call ended with.
    hidden = error.code() is grpc.StatusCode.INTERNAL and error.details() == _WRITE_FAILED
    return hidden or is_reset(error) or error.code() is grpc.StatusCode.UNAVAILABLE


async def _each(batches: AsyncIterable[Inputs] | Iterable[Inputs]) -> AsyncIterator[Inputs]:
    if isinstance(batches, AsyncIterable):
        async for inputs in batches:
            yield inputs
        return
    # Whatever makes the batches, reading a file for one, must not hold up the loop.
    iterator = iter(batches)
    while (following := await asyncio.to_thread(_next, iterator)) is not None:
        yield following


def _next(iterator: Iterator[Inputs]) -> Inputs | None:
    return next(iterator, None)

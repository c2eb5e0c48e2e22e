"""The client for asyncio, which the one without asyncio runs, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from tensorway._client_bulk import BatchResult, Bulk
from tensorway._client_calls import Calls, Embedder, retrying
from tensorway._client_direct import Direct
from tensorway._client_handoff import Handoff, Image, SamplingOptions
from tensorway._client_requests import (
    EmbedOptions,
    Inputs,
    Vectors,
    build,
    count,
    cut,
    split,
    to_array,
)
from tensorway.channels import Dialer
from tensorway.errors import TensorwayError, TooLarge
from tensorway.handoff.features import Features
from tensorway.options import MIB, DialOptions
from tensorway.sharding import shift
from tensorway.v1 import embedding_pb2, generator_pb2, model_pb2

T = TypeVar("T")

# Parts of one large request that are in flight at once.
_PARTS = 4
# Left for what is in a message besides its inputs.
_SPARE_BYTES = 64 * 1024


class AsyncClient:
    """A client for asyncio; an async context manager.

    ``target`` is the router's ``host:port`` or any gRPC target name. ``timeout`` is the
    deadline of a call in seconds unless the call sets one. ``token`` is a bearer token;
    ``dial`` holds TLS and the message limit. With ``direct`` it balances over the workers
    itself, by the router's table, which saves the hop through the router.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        dial: DialOptions | None = None,
        token: str = "",
        timeout: float = 60.0,
        direct: bool = False,
    ) -> None:
        self._target = target
        self._dial = dial or DialOptions()
        self._token = token
        self._timeout = timeout
        self._direct = direct
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the channel; connecting happens with the first call."""
        dialer, limit = Dialer(self._dial), self._dial.dial_max_message_mib
        channel = await self._stack.enter_async_context(dialer.open(self._target, *retrying(limit)))
        self._calls = Calls(channel, dialer, self._token)
        self._handoff = Handoff(channel, self._calls)
        self._embedder: Embedder = self._calls
        if self._direct:
            self._embedder = direct = Direct(self._calls, dialer)
            await self._stack.enter_async_context(direct.following())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the channel, and end the calls that are left."""
        await self._stack.aclose()

    async def embed(
        self,
        inputs: Inputs,
        *,
        model: str,
        timeout: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> Vectors:
        """The vectors of texts, or of lists of token ids, as one array [inputs, width].

        What is too large for one request is sent as several, all inside the deadline.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        max_bytes = self._dial.dial_max_message_mib * MIB - _SPARE_BYTES
        slots, work, start = asyncio.Semaphore(_PARTS), [], 0
        for part in split(build(inputs, model, options), max_bytes):
            work.append(self._embed(part, start, deadline, slots))
            start += count(part)
        answers = [answer for part in await _all_or_none(work) for answer in part]
        return to_array(answers, options.get("dtype", "float32"))

    def embed_stream(
        self,
        batches: AsyncIterable[Inputs] | Iterable[Inputs],
        *,
        model: str,
        **options: Unpack[EmbedOptions],
    ) -> AsyncGenerator[BatchResult, None]:
        """Embed in bulk: the result of each batch as it ends, in any order.

        Batches are taken only as fast as the server works. A failed batch does not end the
        stream; a lost connection is opened again.
        """
        return Bulk(self._calls, model, options).run(batches)

    async def encode(
        self,
        images: Sequence[Image],
        *,
        model: str,
        target_model: str = "",
        timeout: float | None = None,
    ) -> Features:
        """What an encoder makes of images: rows [rows, hidden size], and whose they are.

        ``target_model`` is the generator's model that they are for, if there is one.
        """
        seconds = self._timeout if timeout is None else timeout
        return await self._handoff.encode(images, model, target_model, seconds)

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        model: str,
        images: Sequence[Image] = (),
        encoder: str = "",
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> AsyncGenerator[generator_pb2.GenerateResponse, None]:
        """Generate; yields tokens and their text as they come.

        With images the prompt holds one placeholder token for each, and ``encoder`` is the
        model that encodes them. It is never tried again: its answer has begun.
        """
        seconds = self._timeout if timeout is None else timeout
        return self._handoff.generate(prompt_token_ids, model, images, encoder, seconds, sampling)

    async def models(self) -> list[model_pb2.Model]:
        """The models that are served, sorted by name."""
        request, method = model_pb2.ListModelsRequest(), self._calls.models.ListModels
        return list((await self._calls.unary(method, request, self._timeout)).models)

    async def workers(self, model: str = "") -> list[model_pb2.Worker]:
        """The workers, of one model or all."""
        request, method = model_pb2.ListWorkersRequest(model=model), self._calls.models.ListWorkers
        return list((await self._calls.unary(method, request, self._timeout)).workers)

    async def _embed(
        self,
        request: embedding_pb2.EmbedRequest,
        start: int,
        deadline: float,
        slots: asyncio.Semaphore,
    ) -> list[Any]:
        try:
            async with slots:
                return [await self._embedder.embed(request, deadline - time.monotonic())]
        except TooLarge as error:
            if (size := count(request)) == 1:
                raise shift(error, start) from None
        except TensorwayError as error:
            raise shift(error, start) from None
        # Only the answer shows how wide its vectors are, and the server how many it takes.
        half = size // 2
        left = await self._embed(cut(request, 0, half), start, deadline, slots)
        return left + await self._embed(cut(request, half, size), start + half, deadline, slots)


async def _all_or_none(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()

"""EmbeddingService of the router: the same contract as a worker's, over all workers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from tensorway import dispatch, envelope
from tensorway.deadline import seconds_left
from tensorway.errors import TooLarge
from tensorway.streams import answer_each
from tensorway.v1 import model_pb2

from . import bulk
from .front import Context, Front

EMBED = "/tensorway.v1.EmbeddingService/Embed"


class EmbeddingService:
    """Embeds with whichever workers serve the model.

    `timeout` is the deadline in seconds for requests that have none, `window` the number of
    requests of one stream that are in flight at once, `most` the inputs that one may have.
    """

    def __init__(self, front: Front, timeout: float, window: int, most: int) -> None:
        self._most = most
        self._front = front
        self._timeout = timeout
        self._window = window

    async def Embed(self, data: bytes, context: Context) -> bytes:
        """Embed one request."""
        request = envelope.read_embed(data)
        return await self._embed(request, data, context, seconds_left(context, self._timeout))

    async def EmbedStream(self, requests: Any, context: Context) -> AsyncIterator[Any]:
        """Embed each request of a stream, several at once, answered as they finish."""

        async def embed(request: Any, data: bytes) -> bytes:
            left = min(seconds_left(context, self._timeout), self._timeout)
            deadline = time.monotonic() + left
            # A stream is held back where a single call is refused.
            await self._front.room(request.model, envelope.work(request, len(data)), context, left)
            return await self._embed(request, data, context, deadline - time.monotonic())

        answer = partial(bulk.answer, embed, set[str]())
        async for result in answer_each(requests, answer, self._window):
            yield result

    async def _embed(self, request: Any, data: bytes, context: Context, left: float) -> bytes:
        """Find the workers, let the request in, have it answered; a big one by several."""
        self._check_count(len(envelope.inputs(request)), request)
        name, work = request.model, envelope.work(request, len(data))
        await self._front.settled(name, left)
        with self._front.route(name, model_pb2.TASK_EMBED, work, context, left) as route:
            if (model := route.pool.model) != name:
                request.model, data = model, envelope.renamed(data, model)
            send = partial(route.unary, EMBED)
            answer = await dispatch.embed(route.pool, request, data, send)
            return answer if model == name else envelope.renamed(answer, name)

    def _check_count(self, count: int, request: Any) -> None:
        # Checked for the whole: of how many parts it is made depends on the workers.
        if count > self._most:
            field = "tokens.sequences" if request.HasField("tokens") else "texts.texts"
            expected = f"expected at most {self._most} inputs (--max-inputs), got {count}"
            raise TooLarge(f"{field}: {expected}", field=field)

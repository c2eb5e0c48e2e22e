"""Streaming RPCs of generators and encoders: passed through, one message held each way.

A stream is tried on another worker only while nothing was answered and the first
message is all that was sent, since the router keeps no more than that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from tensorway import envelope
from tensorway.deadline import seconds_left
from tensorway.errors import InvalidArgument
from tensorway.retry import Trial
from tensorway.v1 import model_pb2

from .front import Context, Front, Route

Write = Callable[[bytes], Awaitable[None]]

GENERATOR = "/tensorway.v1.GeneratorService"
ENCODER = "/tensorway.v1.EncoderService"


class EncoderService:
    """Encodes with whichever encoder serves the model; `timeout` is the default, in seconds."""

    def __init__(self, front: Front, timeout: float) -> None:
        self._front = front
        self._timeout = timeout

    async def Encode(self, data: bytes, context: Context) -> None:
        """Stream an encoder's result."""
        await self._relay(f"{ENCODER}/Encode", data, context)

    async def Generate(self, data: bytes, context: Context) -> None:
        """Stream what a generator makes of an encoder's result."""
        await self._relay(f"{ENCODER}/Generate", data, context)

    async def _relay(self, method: str, data: bytes, context: Context) -> None:
        name, work = envelope.read_named(data).model, envelope.tokens(1, len(data))
        left = seconds_left(context, self._timeout)
        await self._front.settled(name, left)
        with self._front.route(name, model_pb2.TASK_ENCODE, work, context, left) as route:
            if route.pool.model != name:
                data = envelope.renamed(data, route.pool.model)
            await relay(route, method, _Upstream(data, ended=True), work, context.write)


class GeneratorService:
    """Generates with whichever generator serves the model; `timeout` as for encoders."""

    def __init__(self, front: Front, get_model: Any, timeout: float) -> None:
        self._front = front
        self._timeout = timeout
        self.GetModel = get_model

    async def Generate(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Pass a request and its encoder result on, and the tokens back."""
        data = await anext(requests, None)
        if data is None:
            raise InvalidArgument("start: the stream ended before the request", field="start")
        name, work = envelope.read_first(data).start.model, envelope.tokens(1, len(data))
        left = seconds_left(context, self._timeout)
        await self._front.settled(name, left)
        with self._front.route(name, model_pb2.TASK_GENERATE, work, context, left) as route:
            if (model := route.pool.model) != name:
                start = envelope.First(start=envelope.Named(model=model))
                data += start.SerializeToString()
            upstream = _Upstream(data, ended=False)
            with _running(upstream.pump(requests)):
                await relay(route, f"{GENERATOR}/Generate", upstream, work, context.write)


async def relay(route: Route, method: str, upstream: _Upstream, work: float, write: Write) -> None:
    """Pass a caller's messages to a worker, and the worker's to the caller."""
    trial = Trial()
    route.pool.budget.pay()
    route.count.enter()
    try:
        while True:
            with (
                route.pool.attempt(trial, work) as worker,
                worker.stream(method, route.left, route.metadata) as call,
                _running(upstream.feed(call, trial)),
            ):
                async for message in call:
                    trial.final = True
                    worker.silence.hear(time.monotonic())
                    await write(message)
                return
    finally:
        route.count.leave()


class _Upstream:
    """What a caller sends: the first message, which can be sent again, and the rest."""

    def __init__(self, first: bytes, *, ended: bool) -> None:
        self._first = first
        self._rest: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        if ended:
            self._rest.put_nowait(None)

    async def pump(self, requests: AsyncIterator[bytes]) -> None:
        """Read the rest from the caller, no faster than a worker takes it."""
        async for message in requests:
            await self._rest.put(message)
        await self._rest.put(None)

    async def feed(self, call: Any, trial: Trial) -> None:
        """Write to a worker what the caller sends; a broken call tells its reader."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(self._first)
            while (message := await self._rest.get()) is not None:
                trial.final = True
                await call.write(message)
            self._rest.put_nowait(None)
            await call.done_writing()


@contextmanager
def _running(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()

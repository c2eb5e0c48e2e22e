"""One worker as the router knows it: what it registered, its channel, its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from tensorway.balance import CAPACITY, Replica
from tensorway.channels import Metadata
from tensorway.retry import WorkerLost
from tensorway.v1 import model_pb2

# A worker that leaves may finish its calls for this long.
LEAVE_SECONDS = 600.0


@dataclass(eq=False, kw_only=True)
class Worker(Replica):
    """A worker that is registered, or named in the configuration."""

    registration: model_pb2.Worker
    """What it registered, with the router's id for it and the load it last reported."""
    channel: grpc.aio.Channel
    _methods: dict[str, Any] = field(default_factory=dict, repr=False)
    _calls: set[grpc.aio.Call] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        self.capacity = float(self.registration.capacity_tokens or CAPACITY)

    @property
    def place(self) -> tuple[str, str]:
        """Endpoint and address: a worker that registers there again replaces this one."""
        return self.registration.endpoint, self.registration.address

    @property
    def model(self) -> str:
        """Name of the model it serves."""
        return self.registration.model.name

    @property
    def state(self) -> model_pb2.WorkerState.ValueType:
        """Whether it may be given work."""
        if self.draining:
            return model_pb2.WORKER_STATE_DRAINING
        return model_pb2.WORKER_STATE_EJECTED if self.ejected else model_pb2.WORKER_STATE_READY

    async def unary(self, method: str, data: bytes, timeout: float, metadata: Metadata) -> bytes:
        """Send a request as bytes; the answer as bytes."""
        if (send := self._methods.get(method)) is None:
            send = self._methods[method] = self.channel.unary_unary(method, None, None)
        with self._held(send(data, timeout=timeout, metadata=metadata)) as call:
            return await call  # type: ignore[no-any-return]

    @contextmanager
    def stream(self, method: str, timeout: float, metadata: Metadata) -> Iterator[Any]:
        """A call that is written to and read from as bytes; it ends with the context."""
        send: Any = self.channel.stream_stream(method, None, None)
        with self._held(send(timeout=timeout, metadata=metadata)) as call:
            yield call

    def report(self, requests: int, tokens: int) -> None:
        """Note the load that it reports."""
        super().report(requests, tokens)
        self.registration.load.requests = requests
        self.registration.load.tokens = tokens

    def lose(self) -> None:
        """Give it up: its calls end now, as lost."""
        self.lost = True
        for call in tuple(self._calls):
            call.cancel()

    async def close(self) -> None:
        """Close its channel once its calls are over."""
        await self.channel.close(None if self.lost else LEAVE_SECONDS)

    def describe(self, address: bool = True) -> model_pb2.Worker:
        """The worker as the contract shows it, with or without where it is."""
        shown = model_pb2.Worker()
        shown.CopyFrom(self.registration)
        shown.state = self.state
        if not address:
            shown.address = shown.metrics_address = ""
        return shown

    @contextmanager
    def _held(self, call: Any) -> Iterator[Any]:
        self._calls.add(call)
        try:
            yield call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.lost and task is not None and not task.cancelling():
                raise WorkerLost from None
            raise
        finally:
            self._calls.discard(call)
            call.cancel()

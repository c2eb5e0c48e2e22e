"""The generator behind an encoder: what it accepts, and its answers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import grpc

from tensorway.channels import Dialer
from tensorway.errors import Unavailable, from_rpc_error
from tensorway.handoff.negotiation import Target
from tensorway.v1 import generator_pb2

_SERVICE = "/tensorway.v1.GeneratorService"
# A generator that changes what it accepts is a new process; until then a refusal is clear.
_KNOWN_SECONDS = 10.0
_ASK_SECONDS = 5.0
_MOST_KNOWN = 64


class Generators:
    """A generator, or a router that finds one by the model's name."""

    def __init__(self, channel: grpc.aio.Channel, dialer: Dialer) -> None:
        self._dialer = dialer
        self._get_model = channel.unary_unary(
            f"{_SERVICE}/GetModel",
            request_serializer=generator_pb2.GeneratorServiceGetModelRequest.SerializeToString,
            response_deserializer=Target.FromString,
        )
        self._generate: Any = channel.stream_stream(  # type: ignore[call-arg]
            f"{_SERVICE}/Generate"
        )
        self._known: dict[str, tuple[float, Target]] = {}

    async def target(self, model: str) -> Target:
        """What the model's generator accepts."""
        asked, target = self._known.get(model, (0.0, None))
        if target is None or time.monotonic() - asked > _KNOWN_SECONDS:
            request = generator_pb2.GeneratorServiceGetModelRequest(model=model)
            target = await self._ask(request)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[model] = time.monotonic(), target
        return target

    async def generate(
        self, messages: Iterable[bytes], timeout: float | None
    ) -> AsyncGenerator[bytes, None]:
        """The generator's messages, unread, as they come; closing ends the work there."""
        call = self._generate(iter(messages), metadata=self._dialer.metadata(), timeout=timeout)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    async def _ask(self, request: generator_pb2.GeneratorServiceGetModelRequest) -> Target:
        try:
            answer: Target = await self._get_model(
                request, metadata=self._dialer.metadata(), timeout=_ASK_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                # The caller's own time is not up: another encoder may reach another generator.
                raise Unavailable(f"the generator was silent for {_ASK_SECONDS:g} s") from error
            raise from_rpc_error(error) from error
        return answer

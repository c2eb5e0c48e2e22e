"""A request's messages, in the only order that they may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from google.protobuf.unknown_fields import UnknownFieldSet

from tensorway.errors import DeadlineExceeded, InvalidArgument
from tensorway.handoff import frames
from tensorway.handoff.features import Features
from tensorway.handoff.header import Layout
from tensorway.handoff.stream import Assembly
from tensorway.messages import decoder
from tensorway.v1 import generator_pb2, handoff_pb2

# A refused caller is read until it pauses, as one on a busy machine does, and never for long.
_QUIET_SECONDS, _DRAIN_SECONDS = 0.5, 5.0

_parse = decoder(generator_pb2.GenerateRequest.FromString, "GenerateRequest")


class Incoming:
    """Reads the start, then the encoder result that it announces, then the stream's end."""

    def __init__(self, messages: AsyncIterator[bytes], timeout: float) -> None:
        self._messages = messages
        self._timeout = timeout

    async def start(self) -> generator_pb2.GenerateStart:
        """The first message."""
        message = await self._next()
        request = _parse(message) if message is not None else generator_pb2.GenerateRequest()
        if request.WhichOneof("part") != "start":
            raise _disorder("start", request.WhichOneof("part") or "nothing")
        start: generator_pb2.GenerateStart = request.start
        return start

    async def features(self, layout: Layout) -> Features:
        """The encoder result of a checked header."""
        assembly = Assembly(layout)
        while (message := await self._next()) is not None:
            match frames.read(message):
                case frames.Chunk() as chunk:
                    assembly.add(chunk)
                case handoff_pb2.EncoderResultEnd() as end:
                    return assembly.finish(end)
                case _:
                    raise _disorder("chunk or end", "another message")
        raise _disorder("end", f"the stream's end after {assembly.received} bytes")

    async def finish(self) -> None:
        """Raise InvalidArgument unless nothing follows."""
        if (message := await self._next()) is not None:
            part = _parse(message).WhichOneof("part")
            raise _disorder("the stream's end", f"{part or 'a message'} (is its header missing?)")

    async def drain(self) -> None:
        """Take and forget what is on its way, before the request is refused.

        A caller in Python whose call ends while it sends does not learn why: its library
        reports INTERNAL in the place of the real status.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while True:
                    async with asyncio.timeout(_QUIET_SECONDS):
                        if await anext(self._messages, None) is None:
                            return

    async def _next(self) -> bytes | None:
        try:
            async with asyncio.timeout(self._timeout):
                return await anext(self._messages, None)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no message of the request within {self._timeout:g} s"
            ) from None


def check_sources(start: generator_pb2.GenerateStart) -> None:
    """Raise InvalidArgument when an encoder result comes with what it was made from."""
    if not start.HasField("encoder_result"):
        return
    if start.images:
        raise InvalidArgument(
            f"images: expected none beside an encoder result, got {len(start.images)}",
            field="images",
        )
    if len(unknown := UnknownFieldSet(start)):
        number = unknown[0].field_number
        raise InvalidArgument(
            f"start: expected no unknown field beside an encoder result, got number {number}",
            field="start",
        )


def _disorder(expected: str, got: str) -> InvalidArgument:
    return InvalidArgument(f"stream: expected {expected}, got {got}", field="stream")

"""How much a process takes on: requests in flight, and bytes of their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Receive

from tensorway.errors import Cancelled, InvalidArgument, ResourceExhausted, TooLarge


class Permit:
    """The right to work on one request, and the bytes it holds."""

    def __init__(self, admission: Admission) -> None:
        self.bytes = 0
        self._admission = admission

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body of a request; refused as soon as it is over a limit."""
        _check_encoding(headers)
        self._check(_declared(headers))
        chunks, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Cancelled("the client left before the body was complete")
            chunk: bytes = message.get("body", b"")
            self._take(len(chunk))
            chunks.append(chunk)
            more = message.get("more_body", False)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _take(self, size: int) -> None:
        self._check(self.bytes + size)
        self.bytes += size
        self._admission.grow(size)

    def _check(self, size: int) -> None:
        if size > (limit := self._admission.max_body):
            raise TooLarge(f"body: expected at most {limit} bytes (--max-body-mib), got {size}")


class Admission:
    """Gives permits; over a bound it refuses at once, so that nothing queues here."""

    def __init__(self, max_requests: int, max_body: int, max_buffered: int) -> None:
        self.requests = 0
        self.max_body = max_body
        self._bytes = 0
        self._max_requests = max_requests
        self._max_buffered = max_buffered

    @contextmanager
    def permit(self) -> Iterator[Permit]:
        """Hold a permit; raises ResourceExhausted when all of them are taken."""
        if self.requests >= self._max_requests:
            raise ResourceExhausted(
                f"{self.requests} requests in flight, the most that are taken (--max-concurrency)"
            )
        permit = Permit(self)
        self.requests += 1
        try:
            yield permit
        finally:
            self.requests -= 1
            self._bytes -= permit.bytes

    def grow(self, size: int) -> None:
        """Count bytes that were read; raises ResourceExhausted when they are too many."""
        self._bytes += size
        if self._bytes > self._max_buffered:
            raise ResourceExhausted(
                f"bodies in flight: at most {self._max_buffered} bytes (--max-buffered-mib)"
            )


def _check_encoding(headers: Headers) -> None:
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        field = "content-encoding"
        raise InvalidArgument(f"{field}: expected identity or none, got {encoding!r}", field=field)


def _declared(headers: Headers) -> int:
    length = headers.get("content-length", "0")
    if not length.isdecimal():
        raise InvalidArgument(f"content-length: expected a number, got {length!r}")
    return int(length)

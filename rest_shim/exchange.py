"""One HTTP request and its answer: what was sent so far, and whether the client is still there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from tensorway.channels import REQUEST_ID
from tensorway.errors import HTTP_STATUSES, Cancelled

_ID_LENGTH = 128


class Exchange:
    """A request as it is being answered."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.receive = receive
        self.request_id = _request_id(self.headers)
        self.status = 0
        self.ended = False
        self._send = send

    @property
    def route(self) -> str:
        """Template of the route; one name for all paths that are none of ours."""
        return self.scope["route"].path if "route" in self.scope else "none"

    @property
    def started(self) -> bool:
        """Whether an answer was begun, after which no other can be given."""
        return self.status != 0

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on; the first one gets the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"].append((REQUEST_ID.encode(), self.request_id.encode()))
        self.ended = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)

    @asynccontextmanager
    async def while_connected(self) -> AsyncIterator[None]:
        """Cancel what runs inside when the client leaves; raises Cancelled then."""
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(self._cancel_when_left(task))
        try:
            yield
        except asyncio.CancelledError:
            if not watch.done():
                raise
            task.uncancel()
            raise Cancelled("the client left") from None
        finally:
            watch.cancel()

    async def _cancel_when_left(self, task: asyncio.Task[None]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        # The server also says "disconnect" once the answer is complete.
        if not self.ended:
            self.status = self.status or HTTP_STATUSES[Cancelled]
            task.cancel()


def replay(body: bytes) -> Receive:
    """A ``receive`` that gives a body which was read already, and then nothing more."""
    messages: Iterator[Message] = iter([{"type": "http.request", "body": body}])

    async def receive() -> Message:
        for message in messages:
            return message
        return await asyncio.Future()

    return receive


def _request_id(headers: Headers) -> str:
    given = headers.get(REQUEST_ID, "")[:_ID_LENGTH]
    # What is no printable ASCII cannot travel on in gRPC metadata.
    return given if given and given.isascii() and given.isprintable() else uuid.uuid4().hex

"""One request of an EmbedStream: its answer or its error, under its id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tensorway import envelope, errors
from tensorway.errors import InvalidArgument, TensorwayError
from tensorway.v1 import common_pb2, embedding_pb2

# Answers an EmbedRequest that is given as a view and as bytes.
Embed = Callable[[Any, bytes], Awaitable[bytes]]

_BULK = embedding_pb2.EmbedRequest(priority=embedding_pb2.PRIORITY_BULK).SerializeToString()


async def answer(embed: Embed, ids: set[str], item: Any) -> Any:
    """The answer to an EmbedStreamRequest view; `ids` are those in flight on its stream."""
    result, data = envelope.EmbedStreamResponse(), item.request
    try:
        request = envelope.read_embed(data)
        result.request_id = request.request_id
        if not request.priority:
            request.priority, data = embedding_pb2.PRIORITY_BULK, data + _BULK
        with _only_one(request.request_id, ids):
            result.response = await embed(request, data)
    except TensorwayError as error:
        status = errors.to_status(error).SerializeToString()
        result.error.CopyFrom(common_pb2.Status.FromString(status))
    return result


@contextmanager
def _only_one(request_id: str, ids: set[str]) -> Iterator[None]:
    if not request_id or request_id in ids:
        why = "is in flight already" if request_id else "is required in a stream"
        raise InvalidArgument(f"request_id: {request_id!r} {why}", field="request_id")
    ids.add(request_id)
    try:
        yield
    finally:
        ids.discard(request_id)

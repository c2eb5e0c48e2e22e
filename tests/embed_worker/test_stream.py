"""EmbedStream: bulk work over one call, bounded, answered as it finishes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import numpy as np

from embed_worker.fake_engine import vector
from tensorway.v1 import embedding_pb2
from tests.embed_worker.launch import Launcher, Worker, rows

ANSWERED = "embed_worker_requests_total{code=OK,model=fake,task=embed}"
INTERACTIVE = embedding_pb2.PRIORITY_INTERACTIVE


def message(worker: Worker, request_id: str, *texts: str, **fields: Any) -> Any:
    """One request of a stream."""
    request = worker.request(*texts, request_id=request_id, **fields)
    return embedding_pb2.EmbedStreamRequest(request=request)


async def answers(worker: Worker, messages: Iterable[Any]) -> list[Any]:
    """All answers of a stream of these requests, in the order in which they came."""
    call = worker.embedding.EmbedStream(iter(messages), timeout=30)
    return [answer async for answer in call]


async def test_every_request_is_answered_by_its_id(worker: Worker) -> None:
    """Two hundred requests over one call, each with its own vectors."""
    texts = {str(i): [f"{i}-{j}" for j in range(1 + i % 5)] for i in range(200)}
    got = await answers(worker, (message(worker, i, *own) for i, own in texts.items()))
    assert len(got) == len({answer.request_id for answer in got}) == 200
    for answer in got:
        own = texts[answer.request_id]
        expected = [vector([1, *map(ord, text), 2], 8) for text in own]
        np.testing.assert_array_equal(rows(answer.response), expected)
        assert answer.response.request_id == answer.request_id


async def test_answers_come_as_they_finish(start: Launcher) -> None:
    """A small request need not wait for a large one before it."""
    worker = await start.start("--step-seconds", "0.02", "--max-num-seqs", "4")
    large = message(worker, "large", *["a"] * 80)
    small = message(worker, "small", "a", priority=INTERACTIVE)
    assert [a.request_id for a in await answers(worker, [large, small])] == ["small", "large"]


async def test_an_error_does_not_end_the_stream(worker: Worker) -> None:
    """Each bad request has its own error, with code and details; the others are answered."""
    other = message(worker, "other", "a")
    other.request.model = "other"
    sent = [
        message(worker, "empty"),
        message(worker, "good", "a"),
        message(worker, "blank", "a", ""),
        other,
        message(worker, "", "a"),
        message(worker, "last", "b"),
    ]
    got = {answer.request_id: answer for answer in await answers(worker, sent)}
    codes = {i: a.error.code for i, a in got.items() if a.WhichOneof("result") == "error"}
    invalid = grpc.StatusCode.INVALID_ARGUMENT.value[0]
    unknown = grpc.StatusCode.NOT_FOUND.value[0]
    assert codes == {"empty": invalid, "blank": invalid, "other": unknown, "": invalid}
    assert got["blank"].error.message.startswith("texts.texts[1]: ")
    assert len(got["blank"].error.details) == 2
    assert got.keys() - codes.keys() == {"good", "last"}


async def test_an_id_in_flight_may_not_be_used_again(start: Launcher) -> None:
    """The second request of an id is refused; once the first is answered the id is free."""
    worker = await start.start("--step-seconds", "0.1")
    call = worker.embedding.EmbedStream(timeout=20)
    await call.write(message(worker, "same", "first"))
    await call.write(message(worker, "same", "second"))
    refused, answered = await call.read(), await call.read()
    assert refused.error.message == "request_id: 'same' is already in flight on this stream"
    np.testing.assert_array_equal(rows(answered.response), await worker.embed("first"))
    await call.write(message(worker, "same", "third"))
    assert (await call.read()).WhichOneof("result") == "response"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_caller_that_stops_reading_is_not_read(start: Launcher) -> None:
    """Work in flight is bounded by the slots, however much the caller would send."""
    flags = ("--max-stream-requests", "4", "--dimensions", "2048")
    worker = await start.start(*flags)
    call = worker.embedding.EmbedStream(timeout=60)

    async def write() -> None:
        # 30 MB to send, of which gRPC's own buffers hold little; each answer is 4 MB.
        for i in range(1000):
            await call.write(message(worker, str(i), *["x" * 60] * 500))

    writing = asyncio.create_task(write())
    await asyncio.wait({writing}, timeout=4)
    assert not writing.done()
    assert 1 <= (await worker.metrics())[ANSWERED] <= 4 + 4
    call.cancel()
    await asyncio.wait({writing})
    assert (await worker.embed("after")).shape == (1, 2048)


async def test_a_stream_waits_for_room(start: Launcher) -> None:
    """A stream that offers more than the worker takes is slowed down, not refused."""
    worker = await start.start(
        *("--max-queued-inputs", "40", "--max-queued-tokens", "400"),
        *("--step-seconds", "0.005", "--max-stream-requests", "64"),
    )
    got = await answers(worker, (message(worker, str(i), *["x" * 8] * 10) for i in range(60)))
    assert {answer.WhichOneof("result") for answer in got} == {"response"}
    assert len(got) == 60


async def test_a_request_that_never_has_room(start: Launcher) -> None:
    """It is refused at once as too large, and the stream goes on."""
    worker = await start.start("--max-queued-inputs", "10")
    got = await answers(
        worker, [message(worker, "6", *["a"] * 6), message(worker, "5", *["a"] * 5)]
    )
    errors = {answer.request_id: answer.error.message for answer in got}
    assert errors == {
        "6": "expected at most 5 inputs in a request, got 6 (--max-queued-inputs)",
        "5": "",
    }


async def test_leaving_a_stream_drops_its_work(start: Launcher) -> None:
    """A caller that cancels leaves nothing running."""
    worker = await start.start("--step-seconds", "0.05", "--max-num-seqs", "2")
    call = worker.embedding.EmbedStream(timeout=60)
    for i in range(20):
        await call.write(message(worker, str(i), *["a"] * 20))
    await call.read()
    call.cancel()
    await worker.idle(1)


async def test_two_streams_share_the_worker(start: Launcher) -> None:
    """Neither has to wait until the other is done."""
    worker = await start.start("--step-seconds", "0.005", "--max-queued-inputs", "64")
    order: list[str] = []

    async def stream(name: str) -> None:
        call = worker.embedding.EmbedStream(
            iter(message(worker, f"{name}{i}", *["a"] * 8) for i in range(30)), timeout=60
        )
        async for answer in call:
            assert not answer.error.message
            order.append(name)

    await asyncio.gather(stream("a"), stream("b"))
    assert len(order) == 60
    assert set(order[:30]) == {"a", "b"}

"""EmbedStream: many requests over one call, shared among workers."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tensorway.channels import Dialer
from tensorway.options import DialOptions
from tensorway.v1 import embedding_pb2, embedding_pb2_grpc
from tests.rest_shim.processes import started
from tests.router.conftest import Running, request, routing
from tests.router.fakes import FakeWorker, vector


def item(request_id: str, *texts: str, model: str = "fake") -> embedding_pb2.EmbedStreamRequest:
    """One request of a stream."""
    sent = request(*texts, model=model)
    sent.request_id = request_id
    return embedding_pb2.EmbedStreamRequest(request=sent)


async def exchange(router: Running, *items: Any) -> dict[str, Any]:
    """Send these; the answers by id."""
    stream = router.embedding.EmbedStream(iter(items))
    return {answer.request_id: answer async for answer in stream}


async def test_requests_of_a_stream_are_shared_among_workers(router: Running) -> None:
    """Every answer is its request's, and all workers took part."""
    workers = [await router.add(FakeWorker(), endpoint=f"t.w{i}.e") for i in range(3)]
    for worker in workers:
        worker.delay = 0.01

    answers = await exchange(router, *(item(str(i), f"text {i}") for i in range(60)))

    assert len(answers) == 60
    for key, answer in answers.items():
        assert list(answer.response.embeddings[0].values) == vector(f"text {key}")
        assert answer.response.request_id == key
    assert all(10 <= len(worker.requests) <= 30 for worker in workers)
    assert {sent.priority for sent in workers[0].requests} == {embedding_pb2.PRIORITY_BULK}


async def test_a_failing_request_does_not_end_the_stream(router: Running) -> None:
    """Its error stands beside the others' answers, with its details."""
    await router.add()

    answers = await exchange(
        router, item("a", "x"), item("b", ""), item("c", "x", model="no"), item("d", "y")
    )

    assert [answers[key].WhichOneof("result") for key in "abcd"] == [
        *("response", "error", "error", "response")
    ]
    assert answers["b"].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert answers["b"].error.message == "texts.texts[0]: must not be empty"
    assert answers["b"].error.details
    assert answers["c"].error.code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_ids_are_required_and_one_at_a_time(router: Running) -> None:
    """An answer could not be told apart otherwise; an id that is free again may be used again."""
    worker = await router.add()
    worker.delay = 0.2
    stream = router.embedding.EmbedStream()
    for sent in (item("", "x"), item("a", "x"), item("a", "y")):
        await stream.write(sent)
    answers = [await stream.read() for _ in range(3)]
    await stream.write(item("a", "z"))
    again = await stream.read()
    await stream.done_writing()

    errors = [answer.error.message for answer in answers if answer.HasField("error")]
    assert sorted(errors) == [
        "request_id: '' is required in a stream",
        "request_id: 'a' is in flight already",
    ]
    assert list(again.response.embeddings[0].values) == vector("z")


async def test_no_more_is_read_than_the_window() -> None:
    """A caller that does not wait is held back, and nothing piles up in the router."""
    async with routing(stream_window=4) as router:
        worker = await router.add()
        worker.delay = 60
        stream = router.embedding.EmbedStream()
        for number in range(20):
            await stream.write(item(str(number), "x"))
        await router.until(lambda: worker.active == 4)
        await asyncio.sleep(0.1)

        assert worker.active == 4
        stream.cancel()
        await router.until(lambda: worker.active == 0, seconds=2)


async def test_a_big_request_of_a_stream_is_scattered(router: Running) -> None:
    """The same path as a unary call."""
    workers = [await router.add(FakeWorker(), endpoint=f"t.w{i}.e") for i in range(2)]

    answers = await exchange(router, item("a", *map(str, range(64))))

    vectors = [list(one.values) for one in answers["a"].response.embeddings]
    assert vectors == [vector(str(number)) for number in range(64)]
    assert all(len(worker.requests) == 1 for worker in workers)


async def test_a_stream_waits_where_a_call_would_be_refused() -> None:
    """Over the limit of work in flight nothing of a stream is lost or refused."""
    async with routing(caller_limit=100) as router:
        worker = await router.add()
        worker.delay = 0.01

        answers = await exchange(router, *(item(str(i), "a" * 40) for i in range(40)))

    assert all(answer.HasField("response") for answer in answers.values())
    assert len(answers) == len(worker.requests) == 40


async def test_a_request_of_a_stream_that_never_fits_is_refused() -> None:
    """It is told so, instead of waiting for ever."""
    async with routing(caller_limit=100) as router:
        await router.add()

        answers = await exchange(router, item("a", "a" * 1000), item("b", "x"))

    assert answers["a"].error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert answers["b"].HasField("response")


async def test_a_stream_that_stays_open_does_not_hold_up_a_router() -> None:
    """Told to stop, it ends the call with UNAVAILABLE, long before the grace of 30 s."""
    async with (
        started("router") as (process, port),
        Dialer(DialOptions()).open(f"127.0.0.1:{port}") as channel,
    ):
        stream = embedding_pb2_grpc.EmbeddingServiceStub(channel).EmbedStream()
        await stream.write(item("a", "x"))
        assert (await stream.read()).error.code == grpc.StatusCode.NOT_FOUND.value[0]
        process.terminate()
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stream.read()
            assert await process.wait() == 0
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

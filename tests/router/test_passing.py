"""What passes the router unchanged, and what it adds."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tensorway.v1 import embedding_pb2
from tests.router.conftest import Running, routing
from tests.router.fakes import FakeWorker, vector

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_options_reach_the_worker_as_they_were_sent(router: Running) -> None:
    """The router forwards bytes; it drops nothing that it does not know."""
    worker = await router.add()
    sent = embedding_pb2.EmbedRequest(
        model="fake",
        texts={"texts": ["a", "b"]},
        dimensions=4,
        truncate_prompt_tokens=-1,
        add_special_tokens=False,
        prompt_name="query",
        request_id="mine",
        priority=embedding_pb2.PRIORITY_BULK,
    )

    answer = await router.embedding.Embed(sent)

    assert worker.requests == [sent]
    assert answer.request_id == "mine"
    assert [list(item.values) for item in answer.embeddings] == [vector("a"), vector("b")]


async def test_request_id_trace_and_deadline_reach_the_worker(router: Running) -> None:
    """All three are the caller's, one hop further."""
    worker = await router.add()
    metadata = (("x-request-id", "abc"), ("traceparent", TRACE))
    request = embedding_pb2.EmbedRequest(model="fake", texts={"texts": ["a"]})

    answer = await router.embedding.Embed(request, metadata=metadata, timeout=30)

    assert answer.request_id == "abc"
    assert worker.metadata[0]["x-request-id"] == "abc"
    assert worker.metadata[0]["traceparent"].split("-")[1] == TRACE.split("-")[1]
    assert 10 < worker.deadlines[0] < 31


async def test_a_caller_without_a_deadline_gets_the_default_one() -> None:
    """Every request ends."""
    async with routing(timeout=1.5) as router:
        worker = await router.add()
        worker.delay = 60

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.embed("x", timeout=None)
        await router.until(lambda: not worker.active)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert worker.deadlines[0] < 10


async def test_a_cancelled_call_stops_at_the_worker(router: Running) -> None:
    """Nobody computes for a caller who left."""
    worker = await router.add()
    worker.delay = 60
    call = asyncio.ensure_future(router.embed("x", timeout=None))
    await router.until(lambda: worker.active == 1)

    call.cancel()
    await router.until(lambda: worker.active == 0, seconds=2)

    assert worker.cancelled == 1


async def test_a_cancelled_batch_stops_at_every_worker(router: Running) -> None:
    """All shards of a scattered batch end with it."""
    workers = [await router.add(FakeWorker(), endpoint=f"test.w{i}.embed") for i in range(3)]
    for worker in workers:
        worker.delay = 60
    call = asyncio.ensure_future(router.embed(*map(str, range(90)), timeout=None))
    await router.until(lambda: all(worker.active == 1 for worker in workers))

    call.cancel()
    await router.until(lambda: not any(worker.active for worker in workers), seconds=2)


async def test_bad_input_is_the_workers_own_error(router: Running) -> None:
    """INVALID_ARGUMENT with its field, never INTERNAL (R5)."""
    await router.add()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed("a", "")

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "texts.texts[1]: must not be empty"


async def test_bad_input_in_a_scattered_batch_has_its_own_index(router: Running) -> None:
    """The caller counts in their own list."""
    for i in range(3):
        await router.add(FakeWorker(), endpoint=f"test.w{i}.embed")
    texts = [str(index) for index in range(90)]
    texts[75] = ""

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed(*texts)

    assert caught.value.details() == "texts.texts[75]: must not be empty"


async def test_bytes_that_are_no_request_are_refused(router: Running) -> None:
    """What cannot be read has no model to go to."""
    send = router.channel.unary_unary("/tensorway.v1.EmbeddingService/Embed", None, None)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(b"\xff\xff\xff")

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_without_a_model_is_refused(router: Running) -> None:
    """The field is named."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed("a", model="")

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "model: missing"


async def test_a_model_without_the_task_is_refused(router: Running) -> None:
    """A generator does not embed; the message names the task."""
    generator = FakeWorker("gen")
    generator.model.tasks[:] = [6]
    await router.add(generator)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed("a", model="gen")

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "TASK_EMBED" in str(caught.value.details())


@pytest.mark.parametrize("workers", [1, 3])
async def test_the_limit_on_inputs_is_on_the_whole_request(workers: int) -> None:
    """Of how many shards a request would be made does not change what is too large."""
    async with routing(max_inputs=9, split_inputs=4, shard_inputs=2) as router:
        for _ in range(workers):
            await router.add()
        assert len((await router.embed(*["x"] * 9)).embeddings) == 9
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.embed(*["x"] * 10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "expected at most 9 inputs (--max-inputs), got 10" in str(caught.value.details())

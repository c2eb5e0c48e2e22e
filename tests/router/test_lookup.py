"""A request reaches only workers of the model it names (R1)."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.router.conftest import Running, routing
from tests.router.fakes import FakeWorker, vector


async def test_a_request_reaches_only_workers_of_its_model(router: Running) -> None:
    """Two models, one worker each: each request is seen by the right one only."""
    a = await router.add(FakeWorker("a"), endpoint="test.a.embed")
    b = await router.add(FakeWorker("b"), endpoint="test.b.embed")

    answers = await asyncio.gather(*(router.embed("hello", model="b") for _ in range(10)))

    assert (len(a.requests), len(b.requests)) == (0, 10)
    assert {answer.model for answer in answers} == {"b"}
    assert list(answers[0].embeddings[0].values) == vector("hello")


@pytest.mark.parametrize("name", ["A", "a ", "unknown"])
async def test_an_unknown_model_is_not_found_and_the_known_ones_are_listed(
    router: Running, name: str
) -> None:
    """Names are matched exactly, and the message helps."""
    await router.add(FakeWorker("a"))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed("hello", model=name)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert repr(name) in str(caught.value.details())
    assert "'a'" in str(caught.value.details())


async def test_a_router_that_has_just_started_waits_for_workers() -> None:
    """A call that comes before the workers do is answered, and not for ever waited for."""
    async with routing(settle=60) as router:
        early = asyncio.create_task(router.embed("x", timeout=30))
        await asyncio.sleep(0.2)
        worker = await router.add()
        assert (await early).embeddings
        assert len(worker.requests) == 1
    async with routing(settle=0.1) as router:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.embed("x", timeout=30)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

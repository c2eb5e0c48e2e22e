"""Direct mode: the client balances over the workers itself, by a real router's table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import numpy as np
import pytest

from router.config import Config
from tensorway import errors
from tensorway.client import AsyncClient
from tests.router.conftest import routing
from tests.router.fakes import FakeWorker, running, vector


def counts(*workers: FakeWorker) -> list[int]:
    """Requests that each worker had."""
    return [len(worker.requests) for worker in workers]


async def rows(client: AsyncClient, *texts: str) -> bool:
    """Whether the answer to these texts is right."""
    vectors = await client.embed(texts, model="fake")
    return np.array_equal(vectors, [vector(text) for text in texts])


async def test_calls_pass_the_router_by_and_are_shared(rpcs: Callable[[str, str], float]):
    """Each worker gets its share, and there is no other call than these."""
    async with routing() as router:
        workers = [await router.add(endpoint=f"a.b.w{i}") for i in range(2)]
        async with AsyncClient(router.address, direct=True) as client:
            for index in range(20):
                assert await rows(client, f"text {index}")
        assert counts(*workers) == [10, 10]
        assert rpcs("tensorway.v1.EmbeddingService/Embed", "OK") == 20


async def test_large_batch_is_scattered_and_gathered():
    """A batch is spread over the workers, and comes back in input order."""
    async with routing() as router:
        workers = [await router.add(endpoint=f"a.b.w{i}") for i in range(2)]
        async with AsyncClient(router.address, direct=True) as client:
            assert await rows(client, *(f"text {i}" for i in range(100)))
        assert counts(*workers) == [1, 1]
        assert sum(len(w.requests[0].texts.texts) for w in workers) == 100


async def test_workers_come_and_go():
    """A worker that joins gets work, and one that leaves gets none, without an error."""
    async with routing() as router:
        first = await router.add(endpoint="a.b.w0")
        async with AsyncClient(router.address, direct=True) as client:
            assert await rows(client, "a")
            second = await router.add(endpoint="a.b.w1")
            while not second.requests:
                assert await rows(client, "b")
            router.fleet.drain(router.fleet.workers()[0])
            known = client._embedder._workers
            while not any(worker.draining for worker in known.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            before = len(first.requests)
            for _ in range(10):
                assert await rows(client, "c")
            assert len(first.requests) == before


async def test_killed_worker_costs_no_error():
    """A worker that dies under load is passed over; its requests go to another."""
    async with routing() as router:
        process = await router.start("--endpoint", "a.b.w0")
        await router.add(endpoint="a.b.w1")
        async with AsyncClient(router.address, direct=True) as client:
            assert await rows(client, "a")
            process.kill()
            assert all(await asyncio.gather(*(rows(client, f"text {i}") for i in range(50))))


async def test_last_table_holds_without_the_router():
    """When the router is gone, the workers are still there."""
    async with AsyncExitStack() as stack, AsyncExitStack() as life:
        router = await life.enter_async_context(routing())
        await stack.enter_async_context(running(FakeWorker(), router.address))
        await router.until(lambda: len(router.fleet.workers()) == 1)
        client = await stack.enter_async_context(AsyncClient(router.address, direct=True))
        assert await rows(client, "a")
        await life.aclose()
        assert await rows(client, "b")


async def test_what_the_table_does_not_know_goes_to_the_router():
    """An unknown model is the router's to refuse, and hidden addresses are no obstacle."""
    async with routing(direct=False) as router:
        worker = await router.add()
        async with AsyncClient(router.address, direct=True) as client:
            assert await rows(client, "a")
            assert worker.metadata[0]["x-request-id"]
            with pytest.raises(errors.NotFound):
                await client.embed("a", model="other")


@pytest.mark.parametrize("name", ["canary", "old"])
async def test_weighted_aliases_are_drawn_by_the_client(
    name: str, rpcs: Callable[[str, str], float]
):
    """By the router's weights, past the router; an alias goes before a model of its name."""
    async with routing(Config(aliases={name: {"old": 1, "new": 1}})) as router:
        workers = [await router.add(FakeWorker(m), endpoint=f"a.b.{m}") for m in ("old", "new")]
        async with AsyncClient(router.address, direct=True) as client:
            for _ in range(100):
                await client.embed("a", model=name)
            await client.embed([*map(str, range(100))], model=name)
        assert sum(counts(*workers)) == 101
        assert min(counts(*workers)) > 20
        assert {r.model for w in workers for r in w.requests} == {"old", "new"}
        assert rpcs("tensorway.v1.EmbeddingService/Embed", "OK") == 101


async def test_errors_of_a_worker_are_the_callers():
    """A bad input is refused once, with its place in the whole batch."""
    async with routing() as router:
        workers = [await router.add(endpoint=f"a.b.w{i}") for i in range(2)]
        async with AsyncClient(router.address, direct=True) as client:
            with pytest.raises(errors.InvalidArgument) as raised:
                await client.embed([*map(str, range(99)), ""], model="fake")
            assert raised.value.field == "texts.texts[99]"
        # The other part may have been cancelled before it was sent.
        assert max(counts(*workers)) == 1


async def test_deadline_holds():
    """A worker that does not answer in time ends the call by its deadline."""
    async with routing() as router:
        worker = await router.add()
        worker.delay = 30
        async with AsyncClient(router.address, direct=True) as client:
            with pytest.raises(errors.DeadlineExceeded):
                await client.embed("a", model="fake", timeout=0.3)

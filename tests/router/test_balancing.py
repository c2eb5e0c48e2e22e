"""Requests are shared per call, not per connection (R2)."""

from __future__ import annotations

import asyncio

import pytest

from tensorway.balance import POLICIES
from tests.router.conftest import Running, routing
from tests.router.fakes import FakeWorker


async def workers(router: Running, count: int) -> list[FakeWorker]:
    """So many workers of one model."""
    return [await router.add(FakeWorker(), endpoint=f"test.w{i}.embed") for i in range(count)]


@pytest.mark.parametrize("policy", POLICIES)
async def test_one_channel_reaches_all_workers_evenly(policy: str) -> None:
    """Four workers, one channel, 400 calls: 100 each, give or take 20."""
    async with routing(policy=policy) as router:
        pool = await workers(router, 4)
        for _ in range(20):
            await asyncio.gather(*(router.embed("hello world") for _ in range(20)))

        counts = [len(worker.requests) for worker in pool]

    assert sum(counts) == 400
    # Chance is not even: four standard deviations.
    margin = 35 if policy == "weighted_random" else 20
    assert all(abs(count - 100) <= margin for count in counts)


async def test_calls_one_after_the_other_are_shared_too(router: Running) -> None:
    """A client without concurrency does not stay with one worker."""
    pool = await workers(router, 4)
    for _ in range(40):
        await router.embed("hello")

    assert [len(worker.requests) for worker in pool] == [10, 10, 10, 10]


async def test_a_worker_that_joins_has_traffic_within_three_calls(router: Running) -> None:
    """The bound: as many calls as there are workers."""
    await workers(router, 2)
    for _ in range(10):
        await router.embed("hello")

    late = await router.add(FakeWorker(), endpoint="test.late.embed")
    for _ in range(3):
        await router.embed("hello")

    assert len(late.requests) == 1


async def test_a_busy_worker_is_left_alone(router: Running) -> None:
    """Work in flight decides, not the number of past calls."""
    slow, fast = await workers(router, 2)
    slow.delay = 1.0
    first = asyncio.ensure_future(router.embed("a long text " * 50))
    await router.until(lambda: slow.active + fast.active == 1)
    busy, idle = (slow, fast) if slow.active else (fast, slow)

    for _ in range(10):
        await router.embed("hello")
    await first

    assert (len(busy.requests), len(idle.requests)) == (1, 10)


async def test_work_from_elsewhere_counts(router: Running) -> None:
    """A worker that another router keeps busy reports it, and gets less from this one."""
    one, other = await workers(router, 2)
    busy = router.fleet.workers()[0]
    busy.report(requests=10, tokens=50_000)

    for _ in range(10):
        await router.embed("hello")

    assert (len(one.requests), len(other.requests)) == (0, 10)

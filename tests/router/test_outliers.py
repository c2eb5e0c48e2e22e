"""Workers that fail or hang are left alone, and come back."""

from __future__ import annotations

import grpc

from tests.router.conftest import routing
from tests.router.fakes import FakeWorker
from tests.tensorway.services import code


async def test_an_outlier_is_ejected_and_returns_after_good_probes() -> None:
    """A worker that only fails gets no more calls; probes that succeed bring it back."""
    async with routing(eject_failures=3, eject_probes=1) as router:
        bad, _good = [await router.add(FakeWorker(), endpoint=f"test.w{i}.embed") for i in range(2)]
        bad.fails = RuntimeError("broken")
        pool = router.fleet.pools["fake"]
        calls = (router.embed("x") for _ in range(20))
        codes = [await code(call) for call in calls]

        assert codes.count(grpc.StatusCode.INTERNAL) == 3
        assert codes.count(grpc.StatusCode.OK) == 17
        assert pool.counts.ejections == 1
        bad.fails = None
        await router.until(lambda: len(pool.ready()) == 2)
        assert all([(await router.embed("x")).embeddings for _ in range(4)])


async def test_a_worker_that_hangs_is_ejected_by_the_deadlines_it_misses() -> None:
    """Its front still reports load, so only its lateness tells; quick deadlines tell nothing."""
    async with routing(eject_failures=1) as router:
        hung, _good = [
            await router.add(FakeWorker(), endpoint=f"test.w{i}.embed") for i in range(2)
        ]
        hung.delay = 60
        pool = router.fleet.pools["fake"]

        short = [await code(router.embed("x", timeout=0.05)) for _ in range(4)]
        assert short.count(grpc.StatusCode.DEADLINE_EXCEEDED) == 2
        assert pool.counts.ejections == 0
        long = [await code(router.embed("x", timeout=1.2)) for _ in range(4)]
        assert long.count(grpc.StatusCode.DEADLINE_EXCEEDED) == 1
        assert pool.counts.ejections == 1

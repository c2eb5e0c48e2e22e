"""Dispatch, proven from outside by the workers' own counters (R4)."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from tensorway import metrics
from tensorway.options import ObserveOptions
from tests.dispatch_check import burst
from tests.router.conftest import Running
from tests.router.fakes import FakeWorker


class Counting(FakeWorker):
    """A worker with a requests counter on a metrics port of its own."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        registry = CollectorRegistry()
        self._requests = Counter("embed_worker_requests", "Requests.", registry=registry)
        self.metrics = metrics.serve(ObserveOptions(metrics_port=0), registry)

    async def Embed(self, request: Any, context: Any) -> Any:
        """As ever, and counted."""
        self._requests.inc()
        return await super().Embed(request, context)


async def send(router: Running, model: str, count: int) -> None:
    """A burst of so many requests."""
    await asyncio.gather(*(router.embed("hello", model=model) for _ in range(count)))


async def test_a_burst_is_spread_over_the_workers_of_one_model(router: Running) -> None:
    """20 requests, two workers of the model, one of another: both work, the third does not."""
    workers = [
        await router.add(Counting(model), endpoint=f"t.w{i}.e") for i, model in enumerate("aab")
    ]
    addresses = [worker.metrics for worker in workers]

    with burst(addresses, expected={0, 1}, minimum=20):
        await send(router, "a", 20)


async def test_two_bursts_reach_two_models_apart(router: Running) -> None:
    """10 requests each; the second burst is checked for itself."""
    workers = [
        await router.add(Counting(model), endpoint=f"t.w{i}.e") for i, model in enumerate("ab")
    ]
    addresses = [worker.metrics for worker in workers]

    with burst(addresses, expected={0}, minimum=10):
        await send(router, "a", 10)
    with burst(addresses, expected={1}, minimum=10):
        await send(router, "b", 10)

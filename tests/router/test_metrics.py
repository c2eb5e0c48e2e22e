"""What the router counts, and the page for people."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from contextlib import suppress

import grpc
import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from router.metrics import FleetCollector
from router.recent import KEPT, Recent, Summary
from router.status import StatusPage
from tensorway import metrics
from tensorway.options import ObserveOptions
from tests.router.conftest import Running
from tests.router.fakes import FakeWorker


def sample(name: str, **labels: str) -> float:
    """A metric's value now."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def series() -> int:
    """Label sets of the router's own metrics."""
    return sum(
        len(family.samples) for family in REGISTRY.collect() if family.name.startswith("router_")
    )


async def test_requests_are_counted_by_model_and_code(router: Running) -> None:
    """Ten good and three bad requests are ten and three."""
    await router.add(FakeWorker("counted"))
    for texts in [("x",)] * 10 + [("",)] * 3:
        with suppress(grpc.aio.AioRpcError):
            await router.embed(*texts, model="counted")

    assert sample("router_requests_total", model="counted", code="OK") == 10
    assert sample("router_requests_total", model="counted", code="INVALID_ARGUMENT") == 3
    assert sample("router_request_seconds_count", model="counted") == 13


async def test_the_routers_own_time_is_apart_from_the_workers(router: Running) -> None:
    """A slow worker is not the router's doing."""
    worker = await router.add(FakeWorker("slow"))
    worker.delay = 0.3

    await router.embed("x", model="slow")

    assert sample("router_request_seconds_sum", model="slow") >= 0.3
    assert sample("router_own_seconds_sum", model="slow") < 0.15


async def test_unknown_names_make_no_labels(router: Running) -> None:
    """A caller cannot fill the metrics with names of their own."""
    await router.add()
    with pytest.raises(grpc.aio.AioRpcError):
        await router.embed("x", model="unknown")
    before, counted = series(), sample("router_requests_total", model="", code="NOT_FOUND")

    for start in range(0, 1000, 100):
        calls = (router.embed("x", model=f"unknown {start + i}") for i in range(100))
        await asyncio.gather(*calls, return_exceptions=True)

    assert series() == before
    assert sample("router_requests_total", model="", code="NOT_FOUND") == counted + 1000


async def test_workers_and_pools_are_shown_and_go_when_they_go(router: Running) -> None:
    """Picks and shards of each worker; a worker that left leaves no series."""
    registry = CollectorRegistry()
    registry.register(FleetCollector(router.fleet))
    for i in range(2):
        await router.add(FakeWorker(), endpoint=f"t.w{i}.e")
    await router.embed(*map(str, range(64)))
    first, second = router.fleet.workers()

    def picks(endpoint: str, address: str) -> float | None:
        labels = {"model": "fake", "endpoint": endpoint, "address": address}
        return registry.get_sample_value("router_picks_total", labels)

    assert [picks(*worker.place) for worker in (first, second)] == [1, 1]
    assert registry.get_sample_value("router_shards_total", {"model": "fake"}) == 2
    assert registry.get_sample_value("router_in_flight", {"model": "fake"}) == 0
    router.fleet.leave(first)
    assert picks(*first.place) is None


async def test_requests_in_flight_are_shown(router: Running) -> None:
    """One that waits for its worker is in flight."""
    registry = CollectorRegistry()
    registry.register(FleetCollector(router.fleet))
    worker = await router.add()
    worker.delay = 60
    call = asyncio.ensure_future(router.embed("x", timeout=None))
    await router.until(lambda: worker.active == 1)

    assert registry.get_sample_value("router_in_flight", {"model": "fake"}) == 1
    call.cancel()
    await router.until(lambda: router.fleet.pools["fake"].counts.in_flight == 0)


@pytest.fixture
async def page(router: Running) -> str:
    """Address of the router's metrics port."""
    pages = StatusPage(router.front).pages()
    options = ObserveOptions(metrics_port=0)
    return f"http://{metrics.serve(options, CollectorRegistry(), pages)}"


def read(address: str) -> tuple[str, str]:
    """Content type and content of a page."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


async def test_the_status_page_and_its_data(router: Running, page: str) -> None:
    """The page is HTML; its data has every model and worker as they are now."""
    for i in range(2):
        await router.add(FakeWorker(), endpoint=f"t.w{i}.e")
    await router.embed("x")
    router.fleet.drain(router.fleet.workers()[1])

    kind, html = await asyncio.to_thread(read, f"{page}/")
    _, text = await asyncio.to_thread(read, f"{page}/status.json")
    metrics_kind, _ = await asyncio.to_thread(read, f"{page}/metrics")

    assert kind == "text/html; charset=utf-8"
    assert 'name="viewport"' in html
    assert metrics_kind.startswith("text/plain")
    (model,) = json.loads(text)["models"]
    assert (model["name"], model["dimensions"]) == ("fake", 8)
    assert model["recent"]["rate"] > 0
    assert model["recent"]["p50"] > 0
    states = {worker["endpoint"]: worker["state"] for worker in model["workers"]}
    assert states == {"t.w0.e": "ready", "t.w1.e": "draining"}
    assert sum(worker["picks"] for worker in model["workers"]) == 1


def test_recent_requests() -> None:
    """Rate over the window, errors as a part, latency of what succeeded."""
    recent = Recent()
    assert recent.summary(0) == Summary()
    for number in range(100):
        recent.add(number / 10, seconds=number / 1000, ok=number % 10 > 0)

    summary = recent.summary(10.0)

    assert summary.rate == pytest.approx(10)
    assert summary.errors == pytest.approx(0.1)
    assert summary.p50 == pytest.approx(0.051, abs=0.002)
    assert summary.p99 == pytest.approx(0.099)
    assert recent.summary(1000.0) == Summary()


def test_a_high_rate_is_not_cut_to_what_is_kept() -> None:
    """The rate is that of the time which the kept requests cover."""
    recent = Recent()
    for number in range(KEPT * 2):
        recent.add(number / 1000, seconds=0.001, ok=True)

    assert recent.summary(KEPT * 2 / 1000).rate == pytest.approx(1000, rel=0.01)

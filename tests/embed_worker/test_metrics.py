"""What the worker counts: exactly what it did, and nothing for names it does not have."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.embed_worker.launch import Launcher, Worker, fails

REQUESTS = "embed_worker_requests_total{{code={},model=fake,task=embed}}"
HISTOGRAM = "embed_worker_request_seconds_{}{{model=fake,task=embed}}"


@pytest.fixture(scope="module")
async def counted(launcher: Launcher) -> Worker:
    """A worker after ten known requests."""
    worker = await launcher.start("--max-inputs", "8", "--max-num-seqs", "4")
    for i in range(5):
        assert len(await worker.embed(*["ab"] * (i + 1))) == i + 1
    for request in (
        worker.request(),
        worker.request("a", ""),
        worker.ids([2000]),
        worker.request(*["a"] * 9),
    ):
        await fails(worker.embedding.Embed(request))
    unknown = worker.request("a")
    unknown.model = "nobody"
    await fails(worker.embedding.Embed(unknown))
    return worker


async def test_requests_by_code(counted: Worker) -> None:
    """Each request is counted once, under how it ended."""
    metrics = await counted.metrics()
    counts = {"OK": 5, "INVALID_ARGUMENT": 3, "RESOURCE_EXHAUSTED": 1, "NOT_FOUND": 1}
    assert {code: metrics[REQUESTS.format(code)] for code in counts} == counts
    assert metrics[HISTOGRAM.format("count")] == 10
    assert metrics["embed_worker_rejections_total{model=fake,reason=TOO_LARGE}"] == 1


async def test_inputs_tokens_and_steps(counted: Worker) -> None:
    """Only work that was answered counts; steps are what the engine really ran."""
    metrics = await counted.metrics()
    assert metrics["embed_worker_inputs_total{model=fake,task=embed}"] == 15
    assert metrics["embed_worker_tokens_total{model=fake,task=embed}"] == 15 * 4
    steps = {k: v for k, v in metrics.items() if k.startswith("embed_worker_step_inputs")}
    # One step for each request, but two for the five inputs of the last.
    assert steps["embed_worker_step_inputs_count{model=fake}"] == 6
    assert steps["embed_worker_step_inputs_sum{model=fake}"] == 15
    assert steps["embed_worker_step_inputs_bucket{le=4.0,model=fake}"] == 6
    assert metrics["embed_worker_step_tokens_sum{model=fake}"] == 15 * 4
    assert metrics["embed_worker_queue_seconds_count{model=fake}"] == 5


async def test_nothing_in_flight(counted: Worker) -> None:
    """Gauges are back at zero, and the engine's own metrics are there too."""
    metrics = await counted.metrics()
    assert metrics["embed_worker_requests_in_flight{model=fake}"] == 0
    assert metrics["fake_queue{engine_process=0}"] == 0


async def test_work_that_is_held(start: Launcher) -> None:
    """Gauges show what is accepted and not answered yet, by resource."""
    worker = await start.start("--step-seconds", "0.4")
    running = asyncio.create_task(worker.embed(*["ab"] * 5))
    await worker.holds(1)
    metrics = await worker.metrics()
    assert metrics["embed_worker_requests_in_flight{model=fake}"] == 1
    held = {r: metrics[f"embed_worker_queued{{model=fake,resource={r}}}"] for r in RESOURCES}
    assert (held["requests"], held["inputs"], held["tokens"]) == (1, 5, 20)
    assert held["bytes"] > 20
    await running
    metrics = await worker.metrics()
    assert {metrics[f"embed_worker_queued{{model=fake,resource={r}}}"] for r in RESOURCES} == {0}


RESOURCES = ("requests", "inputs", "tokens", "bytes")


async def test_unknown_names_create_no_series(counted: Worker) -> None:
    """A thousand random model names leave the number of series as it was."""
    before = len(await counted.metrics())
    requests = []
    for _ in range(1000):
        request = counted.request("a")
        request.model = f"model-{random.random()}"
        requests.append(fails(counted.embedding.Embed(request)))
    await asyncio.gather(*requests)
    assert len(await counted.metrics()) == before


async def test_latency_from_one_millisecond(counted: Worker) -> None:
    """Sub-second latencies can be told apart."""
    metrics = await counted.metrics()
    bounds = [k for k in metrics if k.startswith("embed_worker_request_seconds_bucket{le=0.0")]
    assert len(bounds) >= 5
    assert "embed_worker_request_seconds_bucket{le=0.001,model=fake,task=embed}" in metrics


async def test_only_the_worker_that_did_the_work_counts(start: Launcher) -> None:
    """Two workers of one model: the counter of the other does not move (E9)."""
    first, second = await start.start(), await start.start()
    for _ in range(3):
        await first.embed("a")
    assert (await first.metrics())[REQUESTS.format("OK")] == 3
    assert REQUESTS.format("OK") not in await second.metrics()

"""Admission by work: over a limit is refused at once, with a hint when to come back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from embed_worker.admission import Admission, Cost
from tensorway.errors import ResourceExhausted, TooLarge
from tensorway.v1 import embedding_pb2
from tests.embed_worker.launch import SERVING, Launcher, Worker, fails

REJECTED = "embed_worker_rejections_total{model=fake,reason=OVERLOADED}"
SLOW = ("--step-seconds", "0.25")
BULK = embedding_pb2.PRIORITY_BULK


@pytest.mark.parametrize(
    ("flags", "held_texts", "refused", "accepted", "resource"),
    [
        pytest.param(
            ("--max-queued-inputs", "16"), ["a"] * 10, ["a"] * 7, ["a"] * 6, "inputs", id="inputs"
        ),
        pytest.param(
            ("--max-queued-tokens", "100"),
            ["a" * 58],
            ["a" * 39],
            ["a" * 38],
            "tokens",
            id="tokens",
        ),
        pytest.param(
            ("--max-queued-bytes", "100"), ["a" * 60], ["a" * 40], ["a"], "bytes", id="bytes"
        ),
    ],
)
async def test_each_resource_is_bounded(
    start: Launcher,
    flags: tuple[str, ...],
    held_texts: list[str],
    refused: list[str],
    accepted: list[str],
    resource: str,
) -> None:
    """No room now is RESOURCE_EXHAUSTED at once; what fits is taken; later all is well."""
    worker = await start.start(*flags, *SLOW)
    first = asyncio.create_task(worker.embed(*held_texts))
    await worker.holds(1)
    error = await fails(worker.embedding.Embed(worker.request(*refused)))
    assert not first.done()
    assert (type(error), error.reason) == (ResourceExhausted, "OVERLOADED")
    assert f"{resource} queued, no room for" in str(error)
    assert error.retry_after is not None
    assert 0.05 <= error.retry_after <= 30
    second = await worker.embed(*accepted)
    assert (len(await first), len(second)) == (len(held_texts), len(accepted))
    assert len(await worker.embed(*refused)) == len(refused)
    assert (await worker.metrics())[REJECTED] == 1


@pytest.mark.parametrize(
    ("flag", "texts", "message"),
    [
        pytest.param("--max-queued-inputs", ["a"] * 51, "50 inputs", id="inputs"),
        pytest.param("--max-queued-tokens", ["a" * 49], "50 tokens", id="tokens"),
        pytest.param("--max-queued-bytes", ["a" * 50], "50 bytes", id="bytes"),
    ],
)
async def test_more_than_all_room(
    start: Launcher, flag: str, texts: list[str], message: str
) -> None:
    """A request that never fits has no hint to come back, and names the flag."""
    worker = await start.start(flag, "50")
    error = await fails(worker.embedding.Embed(worker.request(*texts)))
    assert type(error) is TooLarge
    assert message in str(error)
    assert flag in str(error)
    assert error.retry_after is None


async def test_one_text_costs_the_same_either_way(start: Launcher) -> None:
    """Work counts, not the number of calls: one request of 8 is as good as 8 of one."""
    worker = await start.start("--max-queued-inputs", "16", *SLOW)
    calls = [worker.embed(*["a"] * 8), *(worker.embed("a") for _ in range(8))]
    running = [asyncio.create_task(call) for call in calls]
    await worker.holds(9)
    error = await fails(worker.embedding.Embed(worker.request("a")))
    assert str(error).startswith("the worker has 16 of 16 ")
    assert sum(map(len, await asyncio.gather(*running))) == 16


async def test_bulk_fills_half(start: Launcher) -> None:
    """There is always room for interactive work, however much bulk work is offered."""
    worker = await start.start("--max-queued-inputs", "16", *SLOW)
    bulk = asyncio.create_task(worker.embed(*["a"] * 8, priority=BULK))
    await worker.holds(1)
    error = await fails(worker.embedding.Embed(worker.request("a", priority=BULK)))
    assert str(error) == "the worker has 8 of 8 inputs queued, no room for 1"
    assert len(await worker.embed(*["a"] * 8)) == 8
    assert len(await bulk) == 8


async def test_health_needs_no_room(start: Launcher) -> None:
    """A full worker is a healthy one."""
    worker = await start.start("--max-queued-inputs", "1", *SLOW)
    full = asyncio.create_task(worker.embed("a"))
    await worker.holds(1)
    assert await worker.health() == SERVING
    assert not full.done()
    await full


async def test_500_clients_at_a_limit_of_16(start: Launcher) -> None:
    """500 clients with 4 calls each at once: the refused cost nothing that stays."""
    worker = await start.start("--max-queued-inputs", "16", "--step-seconds", "0.02")
    text = "x" * 60

    async def clients() -> list[str]:
        calls = [worker.embedding.Embed(worker.request(text), timeout=60) for _ in range(2000)]
        await asyncio.gather(*calls, return_exceptions=True)
        return [(await call.code()).name for call in calls]

    await clients()
    before = resident(worker)
    codes = await clients()
    assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"}
    assert codes.count("OK") >= 16
    assert resident(worker) - before < 32 * 2**20
    await worker.idle(5)
    assert len(await worker.embed(*["a"] * 16)) == 16


def resident(worker: Worker) -> int:
    """Memory of the front's process, in bytes."""
    pages = Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


async def test_the_hint_follows_the_speed() -> None:
    """About the time in which half of the queued tokens are done."""
    admission = Admission(Cost(requests=10, inputs=10, tokens=1000, bytes=10))
    with admission.hold(Cost(tokens=1000)):
        assert admission.retry_after() == 1.0
        admission.worked(tokens=100, seconds=1.0)
        assert admission.retry_after() == pytest.approx(5.0)
        with pytest.raises(ResourceExhausted) as raised, admission.hold(Cost(tokens=1)):
            pass
    assert raised.value.retry_after == pytest.approx(5.0)


async def test_a_permit_is_given_back_after_an_error() -> None:
    """Whatever happens while a permit is held."""
    admission = Admission(Cost(requests=1, inputs=1, tokens=1, bytes=1))
    for _ in range(3):
        with pytest.raises(ValueError, match="failed"), admission.hold(Cost(requests=1)):
            raise ValueError("failed")
    assert admission.held == Cost()


async def test_waiting_for_room() -> None:
    """Who waits goes on as soon as there is room, or hears at once that there never is."""
    admission = Admission(Cost(requests=10, inputs=10, tokens=10, bytes=10))
    with pytest.raises(TooLarge):
        await admission.wait_for_room(Cost(tokens=6))
    with admission.hold(Cost(tokens=3)):
        waiting: Any = asyncio.create_task(admission.wait_for_room(Cost(tokens=3)))
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 1)


def test_what_is_not_needed_is_given_back() -> None:
    """At once, and the rest at the end, whatever was given back before."""
    admission = Admission(Cost(100, 100, 100, 100))
    with admission.hold(Cost(tokens=30)) as permit:
        assert not admission.has_ample_room(Cost(tokens=15))
        admission.shrink(permit, Cost(tokens=10))
        assert admission.held == Cost(tokens=10)
        assert admission.has_ample_room(Cost(tokens=15))
        assert not admission.has_ample_room(Cost(tokens=16))
    assert admission.held == Cost()

"""A call that is cancelled or late leaves nothing running in the engine."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tensorway.errors import DeadlineExceeded
from tests.embed_worker.launch import Launcher, Worker, fails

# 200 steps of 50 ms: ten seconds of work.
SLOW = ("--max-num-seqs", "4", "--step-seconds", "0.05")
MUCH = ["a"] * 800
ENDED = "embed_worker_requests_total{{code={},model=fake,task=embed}}"


@pytest.fixture(scope="module")
async def slow(launcher: Launcher) -> Worker:
    """A worker whose engine takes its time."""
    return await launcher.start(*SLOW)


async def test_a_cancelled_call_empties_the_engine(slow: Worker) -> None:
    """Cancelled once they have begun, nothing is left after a second; others are answered."""
    calls = [slow.embedding.Embed(slow.request(*MUCH), timeout=60) for _ in range(3)]
    tasks = [asyncio.ensure_future(call) for call in calls]
    await slow.holds(3)
    beside = asyncio.create_task(slow.embed("beside", timeout=60))
    await slow.holds(4)
    for call in calls:
        call.cancel()
    await slow.idle(1)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, asyncio.CancelledError) for error in ended)
    assert (await beside).shape == (1, 8)
    assert (await slow.metrics())[ENDED.format("CANCELLED")] == 3


async def test_a_call_over_its_deadline_empties_the_engine(slow: Worker) -> None:
    """The caller hears DEADLINE_EXCEEDED, and its work is dropped."""
    error = await fails(slow.embedding.Embed(slow.request(*MUCH), timeout=0.3))
    assert type(error) is DeadlineExceeded
    await slow.idle(1)


async def test_a_deadline_of_one_millisecond(slow: Worker) -> None:
    """Answered with DEADLINE_EXCEEDED, a hundred times, and nothing stays."""
    calls = [slow.embedding.Embed(slow.request(*MUCH), timeout=0.001) for _ in range(100)]
    errors = await asyncio.gather(*map(fails, calls))
    assert {type(error) for error in errors} == {DeadlineExceeded}
    await slow.idle(1)
    assert (await slow.embed("after")).shape == (1, 8)


async def test_our_own_deadline(start: Launcher) -> None:
    """A call without a deadline gets the server's."""
    worker = await start.start(*SLOW, "--default-timeout", "0.3")
    error = await fails(worker.embedding.Embed(worker.request(*MUCH)))
    assert (type(error), str(error)) == (DeadlineExceeded, "no answer within 0.3 s")
    await worker.idle(1)


async def test_a_lost_connection_empties_the_engine(slow: Worker) -> None:
    """A client that is gone is a caller that left."""
    async with grpc.aio.insecure_channel(slow.address) as channel:
        send = channel.unary_unary("/tensorway.v1.EmbeddingService/Embed")
        lost = asyncio.ensure_future(send(slow.request(*MUCH).SerializeToString()))
        await slow.holds(1)
    await slow.idle(1)
    await asyncio.wait({lost})

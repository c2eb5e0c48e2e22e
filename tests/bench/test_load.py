"""The load generator tells the truth about slow servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np

from bench import load
from bench.jobs import Job, Target
from tensorway import wire

STALL_SECONDS = 0.5


@asynccontextmanager
async def server(
    *, stalls_at: int = -1, fails: bool = False, seen: list[int] | None = None
) -> AsyncIterator[Target]:
    """Answers Embed with two vectors; at one call of all it stalls for everybody.

    What is `seen` is how many calls were in flight when each came, that one included.
    """
    calls = in_flight = 0
    stalled = asyncio.Lock()

    async def answer(request: bytes, context: Any) -> bytes:
        nonlocal in_flight
        in_flight += 1
        if seen is not None:
            seen.append(in_flight)
        try:
            return await respond(context)
        finally:
            in_flight -= 1

    async def respond(context: Any) -> bytes:
        nonlocal calls
        calls += 1
        if fails and calls > 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "on purpose")
        async with stalled:
            await asyncio.sleep(STALL_SECONDS if calls == stalls_at else 0)
        response = wire.EmbedResponse(dimensions=2)
        for index in range(2):
            response.embeddings.add(index=index, values=np.array([index, 1], "<f4").tobytes())
        return bytes(response.SerializeToString())

    own = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer, None, None)
    methods = grpc.method_handlers_generic_handler(
        "tensorway.v1.EmbeddingService", {"Embed": handler}
    )
    own.add_generic_rpc_handlers((methods,))
    port = own.add_insecure_port("127.0.0.1:0")
    await own.start()
    yield Target("grpc", f"127.0.0.1:{port}")
    await own.stop(0)


async def test_open_loop_counts_the_wait_of_all_that_were_due() -> None:
    """Requests that were due while the server stalled waited since they were due."""
    async with server(stalls_at=10) as target:
        outcome = await load.run(Job(target, batch=1, callers=1, seconds=1, rate=40))
    assert len(outcome.latencies) == 40
    # 20 requests came during the stall, one every 25 ms: they waited for what was left of it.
    waited = [one for one in outcome.latencies if one > STALL_SECONDS * 1e3 / 4]
    assert len(waited) >= 12


async def test_generators_of_an_open_loop_take_turns() -> None:
    """A generator that is told to wait sends its first request so much later."""
    async with server() as target:
        job = Job(target, batch=1, callers=1, seconds=0.1, rate=20, delay=0.3)
        outcome = await load.run(job)
    assert len(outcome.latencies) == 2
    assert outcome.ended - outcome.began >= 0.3


async def test_closed_loop_keeps_as_many_in_flight_as_there_are_callers() -> None:
    """While the server stalls nobody asks again, whatever would have come in the meantime."""
    seen: list[int] = []
    async with server(stalls_at=10, seen=seen) as target:
        outcome = await load.run(Job(target, batch=1, callers=3, seconds=1))
    assert max(seen) == 3
    # Three more, that connected before the clock started.
    assert len(seen) == len(outcome.latencies) + 3
    assert outcome.ended - outcome.began >= 1


async def test_open_loop_goes_on_asking() -> None:
    """A server that stalls is asked as often as one that does not."""
    seen: list[int] = []
    async with server(stalls_at=2, seen=seen) as target:
        await load.run(Job(target, batch=1, callers=1, seconds=0.5, rate=40))
    assert max(seen) > 3


async def test_failures_are_counted_and_not_timed() -> None:
    """An answer that is an error is a failure, and no latency."""
    async with server(fails=True) as target:
        outcome = await load.run(Job(target, batch=1, callers=1, seconds=1, rate=10))
    assert (len(outcome.latencies), outcome.failures) == (0, 10)


async def test_look_gives_the_vectors() -> None:
    """A look is one request, whose vectors come back."""
    async with server() as target:
        outcome = await load.run(Job(target, batch=2, callers=1, seconds=1, look=True))
    vectors = np.frombuffer(outcome.vectors, np.float32).reshape(-1, outcome.width)
    assert vectors.tolist() == [[0, 1], [1, 1]]

"""SIGTERM: nothing accepted is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tensorway.errors import Unavailable
from tensorway.v1 import embedding_pb2
from tests.embed_worker.launch import NOT_SERVING, Launcher, Worker, fails, until
from tests.embed_worker.registry import registering

SLOW = ("--max-num-seqs", "4", "--step-seconds", "0.05")


@pytest.mark.parametrize("again", range(20))
async def test_20_sigterms_under_load_lose_nothing(start: Launcher, again: int) -> None:
    """Whatever was accepted is answered; whatever comes later hears UNAVAILABLE."""
    await terminate(await start.start("--step-seconds", "0.005"), 8 * again)


async def terminate(worker: Worker, answers: int) -> None:
    """SIGTERM after so many answers, with 16 clients that go on until they are refused."""
    codes: list[str] = []

    async def client() -> None:
        code = "OK"
        while code == "OK":
            call = worker.embedding.Embed(worker.request(*["a"] * 10), timeout=60)
            code = (await call.code()).name
            codes.append(code)

    clients = [asyncio.create_task(client()) for _ in range(16)]
    await until(lambda: len(codes) > answers, 60)
    worker.kill()
    assert await worker.ended(60) == 0, worker.output
    await asyncio.gather(*clients)
    assert set(codes) <= {"OK", "UNAVAILABLE"}
    assert codes.count("UNAVAILABLE") == 16


async def test_work_in_flight_finishes(start: Launcher) -> None:
    """Deregistered and NOT_SERVING first, then the rest is answered, then exit 0."""
    async with registering() as registry:
        worker = await start.start(*SLOW, "--router", registry.address)
        await registry.has(1)
        running = [asyncio.create_task(worker.embed(*["a"] * 40)) for _ in range(3)]
        await worker.holds(3)
        worker.kill()
        await registry.has(0)
        assert registry.drained == 1
        assert not any(task.done() for task in running)
        assert [len(vectors) for vectors in await asyncio.gather(*running)] == [40] * 3
        assert await worker.ended() == 0


async def test_health_turns_before_work_ends(start: Launcher) -> None:
    """An orchestrator that watches hears at once that it must send nothing more."""
    worker = await start.start(*SLOW)
    running = asyncio.create_task(worker.embed(*["a"] * 80))
    await worker.holds(1)
    watched = asyncio.create_task(worker.health_becomes(NOT_SERVING))
    await asyncio.sleep(0.1)
    worker.kill()
    await watched
    assert not running.done()
    assert len(await running) == 80
    assert await worker.ended() == 0


@pytest.mark.parametrize(
    ("flags", "signals", "status"),
    [
        pytest.param(("--grace", "60"), 2, 130, id="second signal"),
        pytest.param(("--grace", "0.3"), 1, 0, id="grace is over"),
    ],
)
async def test_what_is_cut_off_hears_unavailable(
    start: Launcher, flags: tuple[str, ...], signals: int, status: int
) -> None:
    """Safe to try elsewhere, and the engine is gone."""
    worker = await start.start(*SLOW, *flags)
    call = worker.embedding.Embed(worker.request(*["a"] * 1600), timeout=60)
    error = asyncio.ensure_future(fails(call))
    await worker.holds(1)
    for _ in range(signals):
        worker.kill()
        await asyncio.sleep(0.2)
    assert (type(await error), str(await error)) == (Unavailable, "the server is shutting down")
    assert await worker.ended() == status
    assert not start.left_over()


async def test_a_signal_to_the_whole_group(start: Launcher) -> None:
    """A terminal's Ctrl-C reaches the engine too, which must finish its work all the same."""
    for number in (signal.SIGINT, signal.SIGTERM):
        worker = await start.start(*SLOW)
        running = asyncio.create_task(worker.embed(*["a"] * 40))
        await worker.holds(1)
        os.kill(worker.engine(), number)
        worker.kill(number)
        assert len(await running) == 40
        assert await worker.ended() == 0


async def test_streams_finish_what_they_sent(start: Launcher) -> None:
    """All requests of a stream that its caller has ended are answered."""
    worker = await start.start()
    os.kill(worker.engine(), signal.SIGSTOP)
    call = await stream(worker, 5)
    await call.done_writing()
    await worker.holds(5)
    worker.kill()
    os.kill(worker.engine(), signal.SIGCONT)
    answers = [answer async for answer in call]
    assert {answer.request_id for answer in answers if answer.response.dimensions} == set("01234")
    assert await worker.ended() == 0


async def test_a_stream_that_stays_open_holds_nothing_up(start: Launcher) -> None:
    """What was read is answered, then the call ends with UNAVAILABLE, long before the grace."""
    worker = await start.start()
    os.kill(worker.engine(), signal.SIGSTOP)
    call = await stream(worker, 20)
    await worker.holds(20)
    worker.kill()
    os.kill(worker.engine(), signal.SIGCONT)
    answered = {(await call.read()).request_id for _ in range(20)}
    assert answered == set(map(str, range(20)))
    error = await fails(call.read())
    assert (type(error), error.reason) == (Unavailable, "SHUTTING_DOWN")
    assert await worker.ended() == 0
    assert "finish" not in worker.output


async def stream(worker: Worker, requests: int) -> Any:
    """An open EmbedStream on which so many requests were sent."""
    call = worker.embedding.EmbedStream(timeout=60)
    for i in range(requests):
        request = worker.request("a", "b", request_id=str(i))
        await call.write(embedding_pb2.EmbedStreamRequest(request=request))
    return call

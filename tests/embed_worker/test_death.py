"""An engine that dies or hangs, and a front that is killed: noticed, told, nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import grpc

from tensorway.errors import Unavailable
from tensorway.v1 import model_pb2
from tests.embed_worker.launch import NOT_SERVING, SERVING, Launcher, Worker, fails, until
from tests.embed_worker.registry import Registry, registering

SLOW = ("--max-num-seqs", "1", "--step-seconds", "0.2")
MANY = ["a"] * 50


async def in_flight(worker: Worker) -> list[asyncio.Future[Exception]]:
    """Errors-to-be of calls that the worker holds, of every kind."""
    calls = [worker.embedding.Embed(worker.request(*MANY), timeout=60) for _ in range(20)]
    errors = [asyncio.ensure_future(fails(call)) for call in calls]
    await worker.holds(20)
    return errors


async def check_death(
    worker: Worker, registry: Registry, errors: list[asyncio.Future[Exception]], seconds: float
) -> None:
    """All that must follow when the engine is gone, within so many seconds."""
    started = time.monotonic()
    assert {type(error) for error in await asyncio.gather(*errors)} == {Unavailable}
    await registry.has(0)
    assert await worker.ended() == 1, worker.output
    assert time.monotonic() - started < seconds
    assert "EngineDied" in worker.output


async def test_an_engine_that_is_killed(start: Launcher) -> None:
    """In flight fails with UNAVAILABLE, the registration goes, the exit status is not 0."""
    async with registering() as registry:
        worker = await start.start(*SLOW, "--router", registry.address)
        await registry.has(1)
        errors = await in_flight(worker)
        os.kill(worker.engine(), signal.SIGKILL)
        await check_death(worker, registry, errors, 10)


async def test_an_engine_that_hangs(start: Launcher) -> None:
    """Noticed within 10 s, by default, and then the same."""
    async with registering() as registry:
        worker = await start.start(*SLOW, "--router", registry.address)
        await registry.has(1)
        errors = await in_flight(worker)
        os.kill(worker.engine(), signal.SIGSTOP)
        await check_death(worker, registry, errors, 10 + 5)
        assert "finished nothing for 8." in worker.output


async def test_an_idle_engine_that_hangs_is_noticed_with_the_next_request(start: Launcher) -> None:
    """Nothing is wrong with a process that has nothing to do; the timeout is a flag."""
    worker = await start.start("--engine-timeout", "0.5")
    os.kill(worker.engine(), signal.SIGSTOP)
    await asyncio.sleep(1)
    assert await worker.health() == SERVING
    error = await fails(worker.embedding.Embed(worker.request("a"), timeout=10))
    assert type(error) is Unavailable
    assert await worker.ended() == 1


async def test_slow_is_not_hung(start: Launcher) -> None:
    """An engine that goes on finishing something may take long for a request."""
    worker = await start.start(*SLOW, "--engine-timeout", "1.5")
    assert len(await worker.embed(*["a"] * 12)) == 12


async def test_health_while_the_engine_is_gone(start: Launcher) -> None:
    """NOT_SERVING for as long as the worker still answers at all."""
    async with registering() as registry:
        worker = await start.start("--router", registry.address)
        await registry.has(1)
        seen = [await worker.health()]
        os.kill(worker.engine(), signal.SIGKILL)
        with suppress(grpc.aio.AioRpcError):
            while True:
                seen.append(await worker.health())
                await asyncio.sleep(0.02)
        assert await worker.ended() == 1
        assert seen == sorted(seen)
        assert set(seen) <= {SERVING, NOT_SERVING}


async def test_a_poison_request_ends_the_worker_once(start: Launcher) -> None:
    """The process that it kills takes what is in flight with it, and says so."""
    async with registering() as registry:
        worker = await start.start(*SLOW, "--poison-id", "999", "--router", registry.address)
        await registry.has(1)
        errors = await in_flight(worker)
        poison = worker.embedding.Embed(worker.ids([999]), timeout=60)
        errors.append(asyncio.ensure_future(fails(poison)))
        # Let the poison come to the front.
        for error in errors[:-1]:
            error.cancel()
        assert type(await errors[-1]) is Unavailable
        assert await worker.ended() == 1
        assert "status 7" in worker.output
        await registry.has(0)


async def test_a_front_that_is_killed_leaves_no_engine(start: Launcher) -> None:
    """Nothing is left of a worker whose front is killed, working or hung."""
    for number in (signal.SIGCONT, signal.SIGSTOP):
        worker = await start.start(*SLOW)
        errors = await in_flight(worker)
        os.kill(worker.engine(), number)
        worker.kill(signal.SIGKILL)
        assert await worker.ended() == -signal.SIGKILL
        await until(lambda: not start.left_over(), 2)
        await asyncio.gather(*errors)


async def test_a_worker_stays_registered_and_reports_its_load(start: Launcher) -> None:
    """With endpoint, addresses and model as they are."""
    async with registering() as registry:
        worker = await start.start(
            *SLOW, "--router", registry.address, "--endpoint", "lab.search.embed-1"
        )
        await registry.has(1)
        itself = await worker.itself()
        itself.ClearField("load")
        assert registry.workers == [itself]
        assert itself.endpoint == "lab.search.embed-1"
        busy = asyncio.create_task(worker.embed(*["a"] * 10))
        expected = model_pb2.WorkerLoad(requests=1, inputs=10, tokens=30)
        await until(lambda: expected in registry.loads)
        await busy


async def test_a_front_that_stood_still_does_not_blame_its_engine(start: Launcher) -> None:
    """A worker that was stopped for longer than the engine may be silent goes on when it can."""
    worker = await start.start("--step-seconds", "0.2", "--engine-timeout", "1")
    running = asyncio.create_task(worker.embed(*["a"] * 20))
    await worker.holds(1)
    os.kill(worker.process.pid, signal.SIGSTOP)
    await asyncio.sleep(3)
    os.kill(worker.process.pid, signal.SIGCONT)
    assert len(await running) == 20
    assert len(await worker.embed("a")) == 1


async def test_a_front_that_is_killed_leaves_no_files(start: Launcher, tmp_path: Path) -> None:
    """The socket to the engine is gone from the disk once both ends are connected."""
    await start.start(environ={"TMPDIR": str(tmp_path)})
    assert await asyncio.to_thread(os.listdir, tmp_path) == []

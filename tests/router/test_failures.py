"""Workers are killed, stopped, restarted and poisoned; callers do not notice."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import grpc
import pytest

from tensorway.v1 import model_pb2
from tests.router.conftest import Running, routing
from tests.router.fakes import POISON, FakeWorker, running, vector

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


class Load:
    """Calls at a steady rate, each checked; ``errors`` is what their callers saw."""

    def __init__(self, router: Running, rate: float) -> None:
        self.errors: list[BaseException] = []
        self.calls = 0
        self._router = router
        self._rate = rate

    @asynccontextmanager
    async def going(self) -> AsyncIterator[Load]:
        """The load, for as long as this lasts; all its calls have ended after it."""
        ending = asyncio.Event()
        task = asyncio.create_task(self._run(ending))
        yield self
        ending.set()
        await task

    async def _run(self, ending: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as calls:
            number = 0
            while not ending.is_set():
                calls.create_task(self._call(f"text {number}"))
                number += 1
                await asyncio.sleep(1 / self._rate)

    async def _call(self, text: str) -> None:
        self.calls += 1
        try:
            answer = await self._router.embed(text, timeout=10)
            assert list(answer.embeddings[0].values) == vector(text)
        except (grpc.aio.AioRpcError, AssertionError) as error:
            self.errors.append(error)


async def test_kill_9_of_one_of_two_workers_is_not_noticed(router: Running) -> None:
    """At 50 calls a second, with calls on the worker that dies: no caller sees an error."""
    victim = await router.start("--endpoint", "test.a.embed", "--delay", "0.05")
    await router.start("--endpoint", "test.b.embed", "--delay", "0.05")
    async with Load(router, rate=50).going() as load:
        await asyncio.sleep(1)
        victim.kill()
        await asyncio.sleep(1)
        assert len(router.fleet.workers()) == 1

    assert load.errors == []
    assert load.calls > 50


async def test_a_stopped_worker_delays_nobody_and_comes_back() -> None:
    """SIGSTOP one of four: out when its lease ends, its calls retried; SIGCONT: back again."""
    async with routing(lease=1.5) as router:
        processes = [
            await router.start("--endpoint", f"test.w{i}.embed", "--delay", "0.02")
            for i in range(4)
        ]
        async with Load(router, rate=50).going() as load:
            await asyncio.sleep(0.5)
            processes[0].send_signal(signal.SIGSTOP)
            await router.until(lambda: len(router.fleet.workers()) == 3)
            processes[0].send_signal(signal.SIGCONT)
            await router.until(lambda: len(router.fleet.workers()) == 4)
            await asyncio.sleep(0.3)

        assert load.errors == []
        assert all(worker.requests == 0 for worker in router.fleet.workers())
        # Work in flight keeps calls away from the stopped worker. Those that were given to it
        # are tried elsewhere, so few retries mean that few calls ever waited for it.
        assert router.fleet.pools["fake"].counts.retries <= 4


async def test_a_rolling_restart_under_load_is_not_noticed(router: Running) -> None:
    """Three workers are replaced one after the other, under load: no caller sees an error."""
    old = [
        await router.start("--endpoint", f"test.w{i}.embed", "--delay", "0.05") for i in range(3)
    ]
    async with Load(router, rate=50).going() as load:
        for number, process in enumerate(old):
            await router.start("--endpoint", f"test.new{number}.embed", "--delay", "0.05")
            process.terminate()
            assert await process.wait() == 0

    assert load.errors == []
    await router.until(lambda: len(router.fleet.workers()) == 3)
    assert all(".new" in worker.place[0] for worker in router.fleet.workers())


@asynccontextmanager
async def stopping() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A server that takes up no call, and its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.router.stopping"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process, f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        await process.communicate(b"\n")


async def test_calls_that_a_stopping_server_resets_are_not_noticed(router: Running) -> None:
    """What it has not taken up ends as CANCELLED, though nobody cancelled: tried elsewhere."""
    good = await router.add(endpoint="test.good.embed")
    async with stopping() as (process, address):
        worker = model_pb2.Worker(endpoint="test.stops.embed", address=address, model=good.model)
        stuck = await router.fleet.join(worker)
        calls = asyncio.gather(*(router.embed("x") for _ in range(10)))
        await router.until(lambda: len(good.requests) + stuck.requests == 10)
        given = stuck.requests
        # They are on their way, which nothing here can see.
        await asyncio.sleep(0.3)
        process.stdin.write(b"\n")

        answers = await calls

    assert all(list(answer.embeddings[0].values) == vector("x") for answer in answers)
    assert len(good.requests) == 10
    assert router.fleet.pools["fake"].counts.retries == given > 0


async def test_a_poison_request_kills_at_most_two_workers(router: Running) -> None:
    """Then it is refused, in a way that no client tries again by itself."""
    processes = [await router.start("--endpoint", f"test.w{i}.embed") for i in range(4)]

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed(POISON)
    await router.until(lambda: sum(one.returncode is not None for one in processes) == 2)
    await router.until(lambda: len(router.fleet.workers()) == 2)

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "2 workers were lost" in str(caught.value.details())
    assert (await router.embed("hello")).embeddings
    assert sum(one.returncode is None for one in processes) == 2


async def test_vectors_are_right_while_one_worker_is_slow_and_one_dies(router: Running) -> None:
    """200 texts at once and 200 in one batch: each text has its own vector."""
    victim = await router.start("--endpoint", "test.dies.embed", "--delay", "0.3")
    await router.start("--endpoint", "test.slow.embed", "--delay", "0.2")
    await router.start("--endpoint", "test.fast.embed")
    texts = [f"text {number}" for number in range(200)]

    one_by_one = asyncio.gather(*(router.embed(text) for text in texts))
    batch = asyncio.ensure_future(router.embed(*texts))
    await asyncio.sleep(0.15)
    victim.kill()

    for text, answer in zip(texts, await one_by_one, strict=True):
        assert list(answer.embeddings[0].values) == vector(text)
    merged = await batch
    assert [item.index for item in merged.embeddings] == list(range(200))
    assert [list(item.values) for item in merged.embeddings] == [vector(text) for text in texts]
    assert merged.usage.prompt_tokens == sum(map(len, texts))
    assert router.fleet.pools["fake"].counts.retries > 0


class Answering:
    """A server of another make, which answers every call with one gRPC code."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.calls = 0
        self._code = code

    async def Embed(self, request: object, context: grpc.aio.ServicerContext) -> None:
        """Refuse."""
        self.calls += 1
        await context.abort(self._code, "so be it")


@pytest.mark.parametrize("code", CODES)
async def test_only_unavailable_is_tried_again_and_once(
    router: Running, code: grpc.StatusCode
) -> None:
    """Three workers that answer each gRPC code: how many of them are asked."""
    servers = []
    workers = []
    for number in range(3):
        worker = FakeWorker()
        answering = Answering(code)
        worker.Embed = answering.Embed
        workers.append(answering)
        servers.append(await router.add(worker, endpoint=f"test.w{number}.embed"))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed("x")

    assert sum(worker.calls for worker in workers) == (2 if code is UNAVAILABLE else 1)
    if code is UNAVAILABLE:
        # It did not say that it was well, so it counts as lost: a second loss is the last.
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_worker_that_refuses_connections_is_not_noticed(router: Running) -> None:
    """Its registration stands, its port does not: every call succeeds on the other."""
    good = await router.add(FakeWorker(), endpoint="test.good.embed")
    async with running(FakeWorker(), endpoint="x.x.x") as server:
        registration = model_pb2.Worker(
            endpoint="test.bad.embed",
            address=f"127.0.0.1:{server.port}",
            model=FakeWorker().model,
        )
        bad = await router.fleet.join(registration)

    for _ in range(20):
        assert (await router.embed("x")).embeddings

    assert len(good.requests) == 20
    assert bad.ejected


async def code(call: Awaitable[object]) -> grpc.StatusCode:
    """The code a call ended with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


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

"""Workers are killed, stopped and restarted under load; callers do not notice."""

from __future__ import annotations

import asyncio
import signal

from tensorway.client import AsyncClient
from tests.router.conftest import Running, routing
from tests.router.fakes import vector
from tests.router.load import Load


async def test_kill_9_of_one_of_two_workers_is_not_noticed(router: Running) -> None:
    """At 50 calls a second, with calls on the worker that dies: no caller sees an error."""
    victim = await router.start("--endpoint", "test.a.embed", "--delay", "0.05")
    await router.start("--endpoint", "test.b.embed", "--delay", "0.05")
    async with Load(router.vectors, rate=50).going() as load:
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
        async with Load(router.vectors, rate=50).going() as load:
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
    async with Load(router.vectors, rate=50).going() as load:
        for number, process in enumerate(old):
            await router.start("--endpoint", f"test.new{number}.embed", "--delay", "0.05")
            process.terminate()
            assert await process.wait() == 0

    assert load.errors == []
    await router.until(lambda: len(router.fleet.workers()) == 3)
    assert all(".new" in worker.place[0] for worker in router.fleet.workers())


async def test_a_rolling_restart_is_not_noticed_in_direct_mode_either(router: Running) -> None:
    """Clients past the router leave a worker that stops; batches and single texts."""
    old = [await router.start("--endpoint", f"test.w{i}.embed") for i in range(2)]
    async with AsyncClient(router.address, direct=True) as client:

        async def embed(*texts: str) -> list[list[float]]:
            return (await client.embed(texts, model="fake")).tolist()

        async with Load(embed, rate=50).going() as calls, Load(embed, 10, batch=90).going() as some:
            for number, process in enumerate(old):
                await router.start("--endpoint", f"test.new{number}.embed")
                process.terminate()
                assert await process.wait() == 0
            await calls.until(20)

    assert calls.errors == some.errors == []


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

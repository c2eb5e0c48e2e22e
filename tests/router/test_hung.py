"""An engine that hangs behind a worker that says it is well: real workers, a stopped process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tensorway.client import AsyncClient
from tests.router.conftest import Running

# The worker's own watchdog must not help.
WORKER = ("-m", "embed_worker", "fake", "--engine", "fake", "--engine-timeout", "600")


@asynccontextmanager
async def workers(router: Running, count: int) -> AsyncIterator[list[int]]:
    """So many embedding workers, once the router knows them; gives their engines' process ids."""
    processes = []
    for number in range(count):
        own = ("--router", router.address, "--endpoint", f"test.w{number}.embed")
        command = (sys.executable, *WORKER, *own, "--log-level", "error")
        processes.append(await asyncio.create_subprocess_exec(*command))
    try:
        await router.until(lambda: len(router.fleet.workers()) == count, seconds=60)
        yield [_child(process.pid) for process in processes]
    finally:
        for process in processes:
            process.kill()
            await process.wait()


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


@pytest.mark.parametrize("direct", [False, True])
async def test_batches_and_calls_pass_an_engine_by_that_is_stopped(
    router: Running, direct: bool
) -> None:
    """Every batch is answered while one of three engines stands still, and it comes back."""
    texts = [f"text {number}" for number in range(90)]
    async with (
        workers(router, 3) as engines,
        AsyncClient(router.address, direct=direct, timeout=60) as client,
    ):
        expected = await client.embed(texts, model="fake")
        os.kill(engines[0], signal.SIGSTOP)
        for _ in range(10):
            assert (await client.embed(texts, model="fake") == expected).all()
            assert (await client.embed(texts[0], model="fake") == expected[:1]).all()
        os.kill(engines[0], signal.SIGCONT)
        while True:
            pools = client._embedder._pools if direct else router.fleet.pools
            if not any(replica.silence.late for replica in pools["fake"].replicas):
                break
            await client.embed(texts, model="fake")
        counts = pools["fake"].counts

    assert 0 < counts.hedges < 10
    assert counts.retries == 0

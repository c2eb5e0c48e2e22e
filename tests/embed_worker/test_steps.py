"""What the engine's process gives its engine for each step, and how it waits for work."""

from __future__ import annotations

import asyncio

import numpy as np
import psutil
import pytest

from tensorway.v1.embedding_pb2 import PRIORITY_BULK
from tests.embed_worker.launch import Launcher, Worker


async def steps(worker: Worker) -> list[float]:
    """Engine steps so far, and the inputs that they finished."""
    metrics = await worker.metrics()
    return [metrics[f"embed_worker_step_inputs_{what}{{model=fake}}"] for what in ("count", "sum")]


@pytest.mark.parametrize(
    ("length", "inputs", "expected"),
    [
        pytest.param(8, 32, 4, id="as many inputs as fit"),
        pytest.param(18, 9, 3, id="none that goes over"),
        pytest.param(50, 5, 5, id="one that alone is more"),
    ],
)
async def test_a_step_gets_no_more_tokens_than_it_should(
    start: Launcher, length: int, inputs: int, expected: int
) -> None:
    """An engine that works while it is fed is fed 80 tokens at a time."""
    worker = await start.start("--step-tokens", "80", "--max-num-seqs", "64")
    await worker.embed("first")
    before = await steps(worker)
    await worker.embed(*["x" * length] * inputs)
    assert [now - then for now, then in zip(await steps(worker), before, strict=True)] == [
        expected,
        inputs,
    ]


async def test_long_bulk_work_goes_on_beside_short_questions(start: Launcher) -> None:
    """A bulk input that would never fit beside them is given all the same, one at a time."""
    flags = ("--step-tokens", "80", "--max-num-seqs", "64", "--max-model-len", "128")
    worker = await start.start(*flags, "--step-seconds", "0.01")
    bulk = asyncio.create_task(worker.embed(*["b" * 78] * 5, priority=PRIORITY_BULK))

    async def ask() -> None:
        while not bulk.done():
            await worker.embed("short")

    await asyncio.gather(*(ask() for _ in range(4)))
    assert (await bulk).shape == (5, 8)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@pytest.mark.parametrize(
    ("flags", "awake"),
    [
        pytest.param(("--on-gpu", "--engine-poll", "60"), True, id="on a GPU"),
        pytest.param(("--on-gpu", "--engine-poll", "0"), False, id="switched off"),
        pytest.param(("--engine-poll", "60"), False, id="on the services' own cores"),
        pytest.param(("--on-gpu", "--engine-poll", "0.1"), False, id="long after its last work"),
    ],
)
async def test_an_idle_engine_polls_for_a_while(
    start: Launcher, flags: tuple[str, ...], awake: bool
) -> None:
    """It answers all the same, and takes a core only for as long as it was told to."""
    worker = await start.start(*flags)
    first = await worker.embed("a", "b")
    await asyncio.sleep(0.3)
    before = cpu_seconds(worker.engine())
    await asyncio.sleep(1.5)
    assert (cpu_seconds(worker.engine()) - before > 0.15) is awake
    np.testing.assert_array_equal(await worker.embed("a", "b"), first)

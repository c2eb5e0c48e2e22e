"""Interactive work goes first; bulk work takes what is left."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tensorway.v1 import embedding_pb2
from tests.embed_worker.launch import Launcher, Worker

BULK = embedding_pb2.PRIORITY_BULK
STEPS = "embed_worker_step_inputs_count{model=fake}"
# The step that runs, the one of the request, and one for each of the two scrapes; one
# more because messages take time on a busy machine.
FEW = 5


async def steps(worker: Worker) -> float:
    """Engine steps so far."""
    return (await worker.metrics())[STEPS]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        pytest.param(("--max-num-seqs", "4"), "x", id="steps bounded by inputs"),
        pytest.param(
            ("--max-num-seqs", "256", "--max-num-batched-tokens", "256"),
            "x" * 62,
            id="steps bounded by tokens",
        ),
    ],
)
async def test_bulk_delays_interactive_by_about_one_step(
    start: Launcher, flags: tuple[str, ...], text: str
) -> None:
    """However much bulk work is queued."""
    worker = await start.start(*flags, "--step-seconds", "0.25")
    await worker.embed("first")
    bulk = asyncio.create_task(worker.embed(*[text] * 400, priority=BULK, timeout=60))
    await worker.holds(1)
    await asyncio.sleep(0.6)
    for i in range(3):
        before = await steps(worker)
        assert (await worker.embed(f"interactive {i}")).shape == (1, 8)
        assert await steps(worker) - before <= FEW
    assert not bulk.done()
    bulk.cancel()


async def test_bulk_goes_on_under_interactive_load(start: Launcher) -> None:
    """What one step leaves free is bulk's: neither waits for the other to end."""
    worker = await start.start("--max-num-seqs", "4", "--step-seconds", "0.01")
    bulk = asyncio.create_task(worker.embed(*["b"] * 100, priority=BULK))
    done = 0
    while not bulk.done():
        vectors = await asyncio.gather(*(worker.embed("i") for _ in range(3)))
        done += len(vectors)
    assert done > 3
    assert (await bulk).shape == (100, 8)


async def test_priorities_change_no_vector(worker: Worker) -> None:
    """Only the order differs."""
    fields: Any = {"priority": BULK}
    np.testing.assert_array_equal(
        await worker.embed("a", "b", **fields), await worker.embed("a", "b")
    )

"""`tensorway bench`: a load, and what it shows."""

from __future__ import annotations

import asyncio
import json

import pytest

from tensorway import errors
from tests.tensorway.cli import served, tensorway

SHORT = ("bench", "--duration", "0.3", "--model", "minilm")


async def test_every_combination_is_measured() -> None:
    """A line for each batch size with each number of callers, and requests as they say."""
    async with served() as (fake, address):
        sizes = ("--batch", "1", "--batch", "7", "--concurrency", "2", "--concurrency", "3")
        result = await tensorway(*SHORT, "--router", address, *sizes, "--words", "4", "--json")
    assert (result.status, result.err) == (0, "")
    cells = json.loads(result.out)
    seen = [(cell["batch"], cell["concurrency"]) for cell in cells]
    assert seen == [(1, 2), (1, 3), (7, 2), (7, 3)]
    # One request comes before all of them.
    assert sum(cell["requests"] for cell in cells) == len(fake.requests) - 1
    assert {len(request.texts.texts) for request in fake.requests} == {1, 7}
    assert all(len(text.split()) == 4 for text in fake.requests[-1].texts.texts)
    for cell in cells:
        assert 0 < cell["p50_ms"] <= cell["p90_ms"] <= cell["p99_ms"]
        texts = cell["requests_per_second"] * cell["batch"]
        assert cell["texts_per_second"] == pytest.approx(texts)
        assert cell["errors"] == {}


async def test_errors_are_counted() -> None:
    """Refusals are no answers, and make the status 1."""
    busy = errors.ResourceExhausted("busy", retry_after=0.01)
    async with served() as (fake, address):
        sizes = ("--batch", "1", "--concurrency", "1")
        task = asyncio.create_task(tensorway(*SHORT, "--router", address, *sizes))
        while fake.texts < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        fake.error, fake.errors_left = busy, 3
        result = await task
    assert (result.status, result.err) == (1, "")
    assert result.out.splitlines()[1].split()[-2:] == ["3", "OVERLOADED"]


async def test_what_cannot_work_is_told_at_once() -> None:
    """An unknown model, or nobody there."""
    async with served() as (_, address):
        result = await tensorway(*SHORT[:-1], "nobody", "--router", address)
    assert result.status == 1
    assert result.err.startswith(f"Error: {address}: model: 'nobody' is not served")

"""A Qwen3-style decoder with last-token pooling and Matryoshka, on a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from tensorway.errors import InvalidArgument
from tests.embed_worker import vllm
from tests.embed_worker.launch import Launcher, Worker, fails, rows

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

Expected = Callable[..., Awaitable[list[list[float]]]]

WIDTH, LIMIT = 64, 128
# Every input over 48 tokens is split over several steps, and blocks of 32 are cached.
CHUNKED = ("--max-num-batched-tokens", "48", "--max-num-seqs", "16", "--block-size", "32")


@pytest.fixture(scope="module", params=["--no-async-scheduling", "--async-scheduling"])
async def worker(
    launcher: Launcher, small_models: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Worker]:
    """The decoder, started as a user would move it over from `vllm serve`.

    Asynchronous scheduling is the default on a GPU: a step's rows come with a later one.
    """
    matryoshka = ("--hf-overrides", '{"is_matryoshka": true}')
    folder, flags = small_models / "decoder", (*matryoshka, *CHUNKED, request.param)
    worker = await vllm.start(launcher, folder, *flags)
    yield worker
    worker.process.terminate()
    assert await worker.ended() == 0


def sequence(length: int, seed: int = 0) -> list[int]:
    """Token ids of that length, in [2000, 3000)."""
    return np.random.default_rng(seed).integers(2000, 3000, length).tolist()


@pytest.fixture(scope="module")
async def expected(small_models: Path, reference: vllm.Reference) -> Expected:
    """Plain transformers' vectors of token ids."""
    return lambda *sequences: reference("pooled", small_models / "decoder", sequences, "last")


async def check(worker: Worker, expected: Expected, *sequences: list[int]) -> None:
    """The vectors are those of plain transformers' last token."""
    got = rows(await worker.embedding.Embed(worker.ids(*sequences), timeout=10))
    assert vllm.cosines(got, await expected(*sequences)).min() > 0.9999


async def test_the_start_up_says_how_it_pools(worker: Worker) -> None:
    """The folder has a pooling config, so there is nothing to warn of."""
    assert "no sentence-transformers pooling config" not in worker.output
    model = (await worker.itself()).model
    assert (model.dimensions, model.max_model_len) == (WIDTH, LIMIT)
    assert model.is_matryoshka
    assert list(model.prompt_names) == ["document", "query"]


async def test_every_length_around_chunks_and_the_limit(worker: Worker, expected: Expected) -> None:
    """Inputs split over steps are as the unsplit ones, up to exactly the limit."""
    lengths = (1, 2, 31, 32, 33, 47, 48, 49, 96, 97, LIMIT - 1, LIMIT)
    await check(worker, expected, *(sequence(length, length) for length in lengths))
    over = worker.ids(sequence(5), sequence(LIMIT + 1))
    error = await fails(worker.embedding.Embed(over, timeout=10))
    assert (type(error), error.field) == (InvalidArgument, "tokens.sequences[1]")
    assert (await worker.embed("after", timeout=10)).shape == (1, WIDTH)


async def test_repeats_and_shared_prefixes(worker: Worker, expected: Expected) -> None:
    """What the prefix cache gives is what was computed."""
    long = sequence(120, 7)
    first, *repeats = [
        rows(await worker.embedding.Embed(worker.ids(long), timeout=10)) for _ in range(3)
    ]
    for repeat in repeats:
        assert vllm.cosines(repeat, first).min() > 0.99999
    shared = [long[:96] + sequence(20, seed) for seed in (8, 9)]
    await check(worker, expected, long, *shared, long[:100])


@pytest.mark.parametrize("given", [-1, 16])
async def test_short_beside_truncated(worker: Worker, expected: Expected, given: int) -> None:
    """Both answer in time, and the cut text ends with its special token."""
    size = LIMIT if given == -1 else given
    request = worker.request("hi", "word " * 178, truncate_prompt_tokens=given)
    answer = await worker.embedding.Embed(request, timeout=10)
    kept = [[101, 7632, 102], [101, *[2773] * (size - 2), 102]]
    wanted = await expected(*kept)
    assert vllm.cosines(rows(answer), wanted).min() > 0.9999
    by_ids = worker.ids([101, *[2773] * 178, 102], truncate_prompt_tokens=given)
    cut = rows(await worker.embedding.Embed(by_ids, timeout=10))
    assert vllm.cosines(cut, wanted[1:]).min() > 0.9999


async def test_every_value_of_dimensions(worker: Worker) -> None:
    """Each is the full vector, cut and normalised again."""
    (full,) = await worker.embed("hello world")
    got = await asyncio.gather(
        *(worker.embed("hello world", dimensions=d, timeout=60) for d in range(1, WIDTH + 1))
    )
    for d, (vector,) in enumerate(got, 1):
        np.testing.assert_allclose(vector, full[:d] / np.linalg.norm(full[:d]), atol=1e-5)
    for bad in (0, -1, WIDTH + 1):
        error = await fails(worker.embedding.Embed(worker.request("a", dimensions=bad)))
        assert (type(error), error.field) == (InvalidArgument, "dimensions")


async def test_prompts_of_the_model(worker: Worker) -> None:
    """A named prompt is the prefix in the model's own config."""
    named = await worker.embed("cats", prompt_name="query")
    np.testing.assert_allclose(named, await worker.embed("Find: cats"), atol=1e-5)
    error = await fails(worker.embedding.Embed(worker.request("a", prompt_name="zz")))
    assert "known: document, query" in str(error)


async def test_steps_are_counted_with_what_they_finished(worker: Worker) -> None:
    """A step that only starts work is none of ours, and vLLM's own counts are up to date."""
    before = await worker.metrics()
    for length in range(1, 31):
        await worker.embedding.Embed(worker.ids(sequence(length)), timeout=10)
    after = await worker.metrics()

    def grown(name: str) -> float:
        return sum(after[key] - before[key] for key in after if key.startswith(name))

    assert grown("embed_worker_step_inputs_sum") == 30
    assert grown("embed_worker_step_inputs_count") == 30
    assert grown("vllm:request_success_total") == 30
    assert grown("vllm:prompt_tokens_total") == sum(range(1, 31))


async def test_callers_that_leave_take_their_work_along(worker: Worker, expected: Expected) -> None:
    """Whatever step their inputs are in; those who stay get their own vectors."""
    for seed in range(20):
        left = worker.ids(*(sequence(LIMIT, 100 * seed + own) for own in range(8)))
        leaving = worker.embedding.Embed(left, timeout=10)
        await asyncio.sleep(0.002 * seed)
        stays = asyncio.create_task(check(worker, expected, sequence(20, seed)))
        assert leaving.cancel()
        await stays
    async with asyncio.timeout(10):
        while (await worker.itself()).load.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_every_name_answers(worker: Worker) -> None:
    """`--served-model-name small alias` as vLLM takes it."""
    request = worker.request("a")
    request.model = "alias"
    assert (await worker.embedding.Embed(request)).model == "alias"

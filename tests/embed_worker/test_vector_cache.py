"""Finished vectors that are kept: the same answers, less work, within the bytes allowed."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from embed_worker import metrics
from embed_worker.engine import Params
from embed_worker.fake_engine import vector
from embed_worker.tokenizer import Batch
from embed_worker.vector_cache import VectorCache, chosen, content_keys
from tensorway.row_cache import RowCache
from tensorway.v1 import pooling_pb2
from tests.embed_worker.launch import Launcher, Worker, fails

KEPT = "embed_worker_vector_cache_{}{{model=fake}}"
INPUTS = "embed_worker_vector_cache_inputs_total{{model=fake,result={}}}"
STEPPED = "embed_worker_step_inputs_sum{model=fake}"
ENTRY = 8 * 4 + 256
"""Bytes of a vector of the fake engine, and of what belongs to it."""


def batch(*inputs: list[int]) -> Batch:
    """A batch of these token ids."""
    offsets = np.cumsum([0, *map(len, inputs)], dtype=np.int64)
    return Batch(np.array([*chain(*inputs)], np.int32), offsets, np.empty(0, np.int32))


async def counts(worker: Worker) -> tuple[float, float, float]:
    """Hits, misses, and inputs that the engine was given."""
    shown = await worker.metrics()
    return shown[INPUTS.format("hit")], shown[INPUTS.format("miss")], shown[STEPPED]


@pytest.fixture(scope="module")
async def keeping(launcher: Launcher) -> Worker:
    """A worker that keeps vectors; its start-up proof is two of them."""
    flags = ("--vector-cache-bytes", "1000000", "--matryoshka", "--nan-id", "1000")
    worker = await launcher.start(*flags)
    await worker.embed("first")
    return worker


async def test_the_same_vectors(keeping: Worker, worker: Worker) -> None:
    """New, known and repeated texts have the vectors that a worker without a cache gives."""
    for texts in (["a", "b", "c"], ["d", "a", "e", "a", "d"], ["c", "b"], ["f", "f"]):
        assert_array_equal(await keeping.embed(*texts), await worker.embed(*texts))


async def test_known_inputs_do_not_reach_the_engine(keeping: Worker) -> None:
    """Of a request's inputs the engine gets each that is new, once."""
    await keeping.embed("known", "known too")
    hits, misses, stepped = await counts(keeping)
    await keeping.embed("known", "new", "known too", "new", "known")
    assert await counts(keeping) == (hits + 4, misses + 1, stepped + 1)
    await keeping.embed("new", "known")
    assert await counts(keeping) == (hits + 6, misses + 1, stepped + 1)


async def test_what_changes_a_vector_is_part_of_the_key(keeping: Worker, worker: Worker) -> None:
    """Dimensions, prompts and truncation give what they give without a cache."""
    text = "a text of some length"
    await keeping.embed(text)
    for fields in (
        {"dimensions": 4},
        {"dimensions": 8},
        {"prompt_name": "query"},
        {"truncate_prompt_tokens": 5},
        {"add_special_tokens": False},
        {},
    ):
        got, expected = await keeping.embed(text, **fields), await worker.embed(text, **fields)
        assert_array_equal(got, expected)


async def test_ids_and_the_text_that_becomes_them_are_one(keeping: Worker) -> None:
    """What counts is what the engine would get."""
    await keeping.embed("ab")
    hits, misses, stepped = await counts(keeping)
    await keeping.embedding.Embed(keeping.ids([1, ord("a"), ord("b"), 2]))
    assert await counts(keeping) == (hits + 1, misses, stepped)


async def test_what_is_not_finite_is_not_kept(keeping: Worker) -> None:
    """An input that gave NaN is asked of the engine again."""
    kept = (await keeping.metrics())[KEPT.format("bytes")]
    for _ in range(2):
        _, misses, stepped = await counts(keeping)
        await fails(keeping.embedding.Embed(keeping.ids([5, 1000])))
        assert (await counts(keeping))[1:] == (misses + 1, stepped + 1)
    assert (await keeping.metrics())[KEPT.format("bytes")] == kept


async def test_requests_at_the_same_time(keeping: Worker, worker: Worker) -> None:
    """Many who ask for the same at once are all answered right."""
    texts = [f"at once {number}" for number in range(6)]
    expected = await worker.embed(*texts)
    asked = [keeping.embed(*texts[shift:], *texts[:shift]) for shift in range(6)]
    for shift, got in enumerate(await asyncio.gather(*asked)):
        assert_array_equal(got, np.roll(expected, -shift, axis=0))


async def test_other_tasks_pass(keeping: Worker, worker: Worker) -> None:
    """A vector for each token is not kept, and is as it was."""
    texts = {"texts": ["ab", "ab"]}
    request = pooling_pb2.TokenEmbedRequest(model="fake", texts=texts, request_id="one")
    assert await keeping.pooling.TokenEmbed(request) == await worker.pooling.TokenEmbed(request)


async def test_bytes_are_bounded(start: Launcher) -> None:
    """What was asked for longest ago goes first, and is computed again."""
    worker = await start.start("--vector-cache-bytes", str(3 * ENTRY))
    for text in ("a", "b", "c"):
        await worker.embed(text)
    assert (await worker.metrics())[KEPT.format("bytes")] == 3 * ENTRY
    await worker.embed("a")
    await worker.embed("d")
    hits, misses, _ = await counts(worker)
    await worker.embed("a", "c", "d")
    assert (await counts(worker))[:2] == (hits + 3, misses)
    await worker.embed("b")
    assert (await counts(worker))[1] == misses + 1
    assert (await worker.metrics())[KEPT.format("bytes")] == 3 * ENTRY


async def test_without_the_flag_nothing_is_kept(worker: Worker) -> None:
    """The cache is off by default: a text that comes again is computed again."""
    before = (await worker.metrics())[STEPPED]
    await worker.embed("again", "again")
    shown = await worker.metrics()
    assert shown[STEPPED] == before + 2
    assert not [name for name in shown if "vector_cache" in name and "{" in name]


def test_keys_are_of_the_content_alone() -> None:
    """The same ids have the same key anywhere; a border between inputs is not lost."""
    first, second = content_keys(batch([1, 2], [3]), Params())
    assert content_keys(batch([3], [1, 2], [1], [2, 3]), Params())[:2] == [second, first]
    keys = content_keys(batch([1], [2, 3], [1, 2], [3]), Params())
    assert len({*keys, *content_keys(batch([3]), Params(dimensions=4))}) == 5


def test_chosen_inputs_keep_their_ids() -> None:
    """A batch of some inputs, in the order asked for."""
    some = chosen(batch([1, 2], [3], [4, 5, 6]), [2, 0])
    assert_array_equal(some.ids, [4, 5, 6, 1, 2])
    assert_array_equal(some.offsets, [0, 3, 5])


class Counting:
    """An engine in process, that tells what it was given."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    async def run(self, batch: Batch, params: Params, *, bulk: bool = False) -> Any:
        """The fake engine's vectors."""
        inputs = np.split(batch.ids, batch.offsets[1:-1])
        self.given += [ids.tobytes() for ids in inputs]
        return np.stack([vector(ids.tolist(), 8) for ids in inputs]), np.arange(len(inputs) + 1)


INPUTS_OF_SOME = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2), min_size=1)


@settings(max_examples=50)
@given(requests=st.lists(INPUTS_OF_SOME, max_size=8), entries=st.integers(1, 6))
async def test_whatever_is_asked(requests: list[list[list[int]]], entries: int) -> None:
    """Any requests have the engine's vectors, no request computes one twice, bytes are bounded."""
    engine: Any = Counting()
    cache = VectorCache("property", engine, entries * ENTRY)
    for inputs in requests:
        engine.given.clear()
        rows, offsets = await cache.run(batch(*inputs), Params())
        assert_array_equal(rows, np.stack([vector(ids, 8) for ids in inputs]))
        assert_array_equal(offsets, np.arange(len(inputs) + 1))
        assert len(engine.given) == len(set(engine.given))
        assert metrics.CACHE_BYTES.labels("property")._value.get() <= entries * ENTRY


def test_overhead_counts() -> None:
    """An entry takes more than its numbers, and that is bounded too."""
    cache = RowCache(250, overhead=25)
    for name in "abc":
        cache.put(name.encode(), np.zeros(25, np.float32))
    assert (len(cache), cache.bytes) == (2, 250)

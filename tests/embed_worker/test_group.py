"""Several engine processes behind one worker."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from embed_worker.engine_group import merge, part
from embed_worker.tokenizer import Batch
from tensorway.errors import Unavailable
from tensorway.sharding import Shard
from tests.embed_worker.launch import Launcher, fails


def batch(*lengths: int) -> Batch:
    """A batch whose token ids are 0, 1, 2 and so on."""
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    return Batch(np.arange(offsets[-1], dtype=np.int32), offsets, np.empty(0, np.int32))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_parts_hold_each_input_once(cut: int) -> None:
    """A batch cut in two has the same token ids for the same inputs."""
    whole = batch(3, 1, 4, 2)
    first, second = part(whole, Shard(0, cut)), part(whole, Shard(cut, 4))
    assert first.inputs + second.inputs == whole.inputs
    assert_array_equal(np.concatenate([first.ids, second.ids]), whole.ids)
    lengths = [*np.diff(first.offsets), *np.diff(second.offsets)]
    assert lengths == list(np.diff(whole.offsets))
    assert first.offsets[0] == second.offsets[0] == 0


def test_rows_are_merged_in_input_order() -> None:
    """Inputs with several rows keep them when shards are put together."""
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    first = (rows[:3], np.array([0, 1, 3], np.int64))
    second = (rows[3:], np.array([0, 2, 3], np.int64))
    merged, offsets = merge([first, second])
    assert_array_equal(merged, rows)
    assert_array_equal(offsets, [0, 1, 3, 5, 6])


async def test_two_processes_answer_as_one_does(start: Launcher) -> None:
    """A request cut over two processes has the vectors, in order, that one process gives."""
    texts = [f"text {number}" for number in range(40)]
    one = await start.start()
    two = await start.start("--engine-processes", "2", "--shard-tokens", "50")
    assert_array_equal(await two.embed(*texts), await one.embed(*texts))
    metrics = await two.metrics()
    assert {f"fake_queue{{engine_process={number}}}" for number in (0, 1)} <= metrics.keys()


async def test_either_process_may_end_the_worker(start: Launcher) -> None:
    """A worker that lost one of its engine processes leaves, as if it had only that one."""
    worker = await start.start("--engine-processes", "2", "--poison-id", "113")
    error = await fails(worker.embed("q" * 20))
    assert isinstance(error, Unavailable)
    assert await worker.ended() == 1


async def test_one_bad_shard_fails_the_request_with_its_index(start: Launcher) -> None:
    """NaN in the second process's shard is told with the input's index in the request."""
    flags = ("--engine-processes", "2", "--shard-tokens", "20", "--nan-id", "113")
    worker = await start.start(*flags)
    error = await fails(worker.embed(*["a" * 10] * 9, "q"))
    assert "texts.texts[9]" in str(error)

"""A request's way over the workers of its model, without a socket."""

from __future__ import annotations

import asyncio
import time

import pytest

from tensorway import silence
from tensorway.balance import Replica
from tensorway.dispatch import dispatch, embed
from tensorway.envelope import read_embed
from tensorway.errors import InvalidArgument, Unavailable
from tensorway.pool import Pool, Rules
from tensorway.retry import Outliers, WorkerLost
from tensorway.v1 import embedding_pb2
from tests.tensorway.test_retry import DECLINED, UNREACHED


def pool(count: int, rules: Rules | None = None) -> Pool[Replica]:
    """A pool of equal workers."""
    made: Pool[Replica] = Pool("m", rules or Rules())
    made.replicas.extend(Replica() for _ in range(count))
    return made


async def test_a_failure_is_tried_on_another_worker() -> None:
    """The caller sees only the answer; the worker that cannot be reached is out."""
    workers = pool(2)
    first, second = workers.replicas

    async def send(worker: Replica, data: bytes) -> bytes:
        if worker is first:
            raise UNREACHED
        return data + b"!"

    assert await dispatch(workers, b"hi", 1.0, send) == b"hi!"
    assert first.ejected
    assert workers.counts.retries == workers.counts.ejections == 1
    assert (first.work, first.requests, second.work, second.requests) == (0, 0, 0, 0)


async def test_without_another_worker_the_error_is_the_callers() -> None:
    """A worker is not tried twice."""

    async def send(worker: Replica, data: bytes) -> bytes:
        raise DECLINED

    workers = pool(1)
    with pytest.raises(Unavailable, match="no"):
        await dispatch(workers, b"hi", 1.0, send)
    assert workers.replicas[0].picks == 1


async def test_nobody_is_there() -> None:
    """An empty pool is UNAVAILABLE, naming the model."""

    async def send(worker: Replica, data: bytes) -> bytes:
        return data

    with pytest.raises(Unavailable, match="'m' has no live worker"):
        await dispatch(pool(0), b"hi", 1.0, send)


async def test_a_worker_that_fails_in_a_row_is_ejected_and_a_success_clears_it() -> None:
    """Five failures with an answer among them are not five in a row."""
    workers = pool(2, Rules(outliers=Outliers(failures=3)))
    bad = workers.replicas[0]
    outcomes = iter([False, False, True, False, False, False])

    async def send(worker: Replica, data: bytes) -> bytes:
        if worker is bad and not next(outcomes):
            raise DECLINED
        return data

    async def until(picks: int) -> None:
        while bad.picks < picks:
            await dispatch(workers, b"", 1.0, send)

    await until(5)
    assert not bad.ejected
    await until(6)
    assert bad.ejected
    workers.restore(bad)
    assert bad.ready
    assert bad.failures == 0


async def test_a_slow_call_is_tried_twice_when_hedging() -> None:
    """The second try's answer is taken and the first one cancelled."""
    workers = pool(2, Rules(hedge_quantile=0.9))
    stuck, cancelled = asyncio.Event(), asyncio.Event()
    slow: Replica | None = None

    async def send(worker: Replica, data: bytes) -> bytes:
        nonlocal slow
        if stuck.is_set() and slow in (None, worker):
            slow = worker
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()
        return data

    for _ in range(40):
        await dispatch(workers, b"x", 1.0, send)
    before = workers.counts.hedges
    stuck.set()

    async with asyncio.timeout(10):
        assert await dispatch(workers, b"x", 1.0, send) == b"x"
        await cancelled.wait()
    assert workers.counts.hedges == before + 1


def batch(*texts: str) -> tuple[object, bytes]:
    """A request as view and as bytes."""
    data = embedding_pb2.EmbedRequest(model="m", texts={"texts": texts}).SerializeToString()
    return read_embed(data), data


async def echo(worker: Replica, data: bytes) -> bytes:
    """Answer each text with one number, its own value."""
    request = embedding_pb2.EmbedRequest.FromString(data)
    answer = embedding_pb2.EmbedResponse(model="m", usage={"prompt_tokens": 1, "total_tokens": 1})
    for index, text in enumerate(request.texts.texts):
        if not text:
            field = f"texts.texts[{index}]"
            raise InvalidArgument(f"{field}: must not be empty", field=field)
        answer.embeddings.add(index=index, values=[float(text)])
    return answer.SerializeToString()


@pytest.mark.parametrize(("count", "shards"), [(63, 0), (64, 3), (100, 3)])
async def test_a_batch_over_the_threshold_is_spread_and_merged_in_order(
    count: int, shards: int
) -> None:
    """Every vector is at its input's place, and usage is the sum."""
    workers = pool(3)

    merged = embedding_pb2.EmbedResponse.FromString(
        await embed(workers, *batch(*map(str, range(count))), echo)
    )

    assert [item.index for item in merged.embeddings] == list(range(count))
    assert [item.values[0] for item in merged.embeddings] == list(range(count))
    assert workers.counts.shards == shards
    assert merged.usage.prompt_tokens == max(shards, 1)


async def test_no_worker_gets_a_shard_that_is_not_worth_it() -> None:
    """64 inputs are four shards of 16 at most, however many workers there are."""
    workers = pool(10)

    await embed(workers, *batch(*map(str, range(64))), echo)

    assert workers.counts.shards == 4


async def test_a_shard_whose_worker_is_lost_is_tried_on_another() -> None:
    """The others' answers are kept, and nothing is missing."""
    workers = pool(3)
    lost = workers.replicas[1]

    async def send(worker: Replica, data: bytes) -> bytes:
        if worker is lost:
            raise WorkerLost
        return await echo(worker, data)

    merged = embedding_pb2.EmbedResponse.FromString(
        await embed(workers, *batch(*map(str, range(90))), send)
    )

    assert [item.values[0] for item in merged.embeddings] == list(range(90))
    assert workers.counts.retries == 1


async def test_a_shard_that_is_late_beside_the_others_is_moved() -> None:
    """The batch is answered; who was late gets neither shards nor calls, and loses its shard."""
    workers = pool(4)
    stuck = workers.replicas[0]

    async def send(worker: Replica, data: bytes) -> bytes:
        if worker is stuck:
            await asyncio.Event().wait()
        return await echo(worker, data)

    async with asyncio.timeout(30):
        for _ in range(20):
            answer = await embed(workers, *batch(*map(str, range(90))), send)
            merged = embedding_pb2.EmbedResponse.FromString(answer)
            assert [item.values[0] for item in merged.embeddings] == list(range(90))
            await dispatch(workers, batch("1")[1], 1.0, send)

    assert (stuck.picks, stuck.requests) == (1, 0)
    assert workers.counts.hedges == 1


async def test_a_call_that_finds_out_whether_a_worker_is_well_again_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a pause it gets one call, which has a second try elsewhere; others pass it by."""
    monkeypatch.setattr(silence, "PAUSE_SECONDS", 0.0)
    workers = pool(2)
    stuck = workers.replicas[0]
    stuck.silence.late = True
    workers._answers.append((1.0, 0.001))

    async def send(worker: Replica, data: bytes) -> bytes:
        if worker is stuck:
            await asyncio.Event().wait()
        return data

    async with asyncio.timeout(30):
        calls = (dispatch(workers, b"x", 1.0, send) for _ in range(20))
        assert await asyncio.gather(*calls) == [b"x"] * 20

    assert (stuck.picks, workers.counts.hedges) == (1, 1)


async def test_without_budget_no_shard_is_moved() -> None:
    """A pool that is late as a whole is not asked twice for everything."""
    workers = pool(2, Rules(retry_ratio=0, retry_reserve=0))
    release = asyncio.Event()

    async def send(worker: Replica, data: bytes) -> bytes:
        if worker is workers.replicas[0]:
            await release.wait()
        return await echo(worker, data)

    call = asyncio.create_task(embed(workers, *batch(*map(str, range(80))), send))
    async with asyncio.timeout(30):
        while not workers.replicas[0].silence.late:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    release.set()

    assert await call
    assert workers.counts.hedges == 0
    assert [worker.picks for worker in workers.replicas] == [1, 1]


def test_half_of_a_pool_goes_on_however_silent_all_are() -> None:
    """A fault that all share must not empty the pool; the most silent go first."""
    workers = pool(5)
    workers._answers.append((1.0, 0.001))
    for seconds, worker in enumerate(workers.replicas[:4], start=10):
        worker.silence.begin(time.monotonic() - seconds, 1.0)

    assert workers.answering() == [workers.replicas[i] for i in (0, 1, 4)]


def test_shards_go_to_the_workers_with_least_work() -> None:
    """When there are more workers than shards."""
    workers = pool(4)
    for work, worker in zip((9, 1, 9, 0), workers.replicas, strict=True):
        worker.work = work

    assert workers.emptiest(2) == [workers.replicas[3], workers.replicas[1]]
    assert workers.emptiest(9) == workers.replicas


async def test_a_bad_input_fails_with_its_own_index_and_stops_the_others() -> None:
    """The index is that of the caller's list, and no shard goes on alone."""
    workers, cancelled = pool(2), asyncio.Event()

    async def send(worker: Replica, data: bytes) -> bytes:
        if worker is workers.replicas[0]:
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()
        return await echo(worker, data)

    texts = [str(index) for index in range(80)]
    texts[70] = ""
    with pytest.raises(InvalidArgument, match=r"texts\.texts\[70\]: must not be empty"):
        await embed(workers, *batch(*texts), send)
    async with asyncio.timeout(5):
        await cancelled.wait()


async def test_a_cancelled_batch_stops_all_its_shards() -> None:
    """Nothing runs on for a caller who left."""
    workers, cancelled = pool(2), []

    async def send(worker: Replica, data: bytes) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(worker)
        return data

    task = asyncio.create_task(embed(workers, *batch(*map(str, range(80))), send))
    while sum(worker.requests for worker in workers.replicas) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0.01)

    assert len(cancelled) == 2
    assert all(worker.work == 0 for worker in workers.replicas)


async def test_a_failure_of_a_worker_that_left_ejects_nobody() -> None:
    """Its channel is closed, and to probe it would use it."""
    ejected: list[Replica] = []
    workers: Pool[Replica] = Pool("m", Rules(), on_eject=ejected.append)
    workers.replicas.extend([Replica(), Replica()])
    leaving = workers.replicas[0]

    async def send(worker: Replica, data: bytes) -> bytes:
        if worker is leaving:
            workers.replicas.remove(worker)
            raise UNREACHED
        return data

    assert await dispatch(workers, b"x", 1.0, send) == b"x"
    assert ejected == []

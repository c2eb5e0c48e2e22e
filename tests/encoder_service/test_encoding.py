"""Driving a backend: threads, batches, bounds, failures, and the cache."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tensorway.encoder import (
    Preprocessed,
    VisionEncoderBackend,
    check_backend,
    load_backend,
    to_rows,
)
from tensorway.encoding.batcher import EncoderHangs, Job, take
from tensorway.encoding.encoder import Encoder
from tensorway.encoding.flights import Flights
from tensorway.encoding.options import EncoderOptions, ImageOptions
from tensorway.errors import Internal, InvalidArgument, ResourceExhausted, Unavailable
from tensorway.row_cache import RowCache
from tests.encoder_service.backends import TOKEN, WIDTH, MeanEncoder, PreprocessingEncoder
from tests.encoder_service.pictures import image_input, picture

Load = Callable[..., AbstractAsyncContextManager[tuple[Encoder, Any]]]


@asynccontextmanager
async def loaded(
    backend: MeanEncoder | None = None, images: ImageOptions | None = None, **flags: Any
) -> AsyncIterator[tuple[Encoder, Any]]:
    """An encoder that is ready; flags by keyword."""
    backend = backend or PreprocessingEncoder()
    async with Encoder(backend, EncoderOptions(**flags), images) as encoder:
        await encoder.load("model")
        backend.batches.clear()
        yield encoder, backend


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def occupied(encoder: Encoder, backend: Any, width: int = 10) -> asyncio.Task[Any]:
    """A request that the encoder works on until its gate is opened."""
    backend.gate.clear()
    before = backend.entered
    task = asyncio.create_task(encoder.encode(wide(width)))
    await until(lambda: backend.entered > before)
    return task


def waiting(encoder: Encoder, count: int) -> Callable[[], bool]:
    """Whether so many images wait for the encoder."""
    return lambda: len(encoder._batcher._waiting) == count


def wide(*widths: int) -> list[Any]:
    """Images of several widths, each of another colour."""
    return [image_input(picture((i, i, i), (width, 10))) for i, width in enumerate(widths)]


async def test_each_image_owns_its_rows_in_order() -> None:
    """Features are one tensor, with each image's rows where its splits say."""
    async with loaded() as (encoder, _):
        features = await encoder.encode(wide(10, 30, 20))
    assert features.splits == (0, 1, 4, 6)
    assert features.image_token_id == TOKEN
    assert np.allclose(features.rows[:, 0] * 255, [0, 1, 1, 1, 2, 2])


async def test_the_backend_lives_on_one_thread() -> None:
    """build, forward_batch and close share a thread; preprocess has others."""
    async with loaded() as (encoder, backend):
        await asyncio.gather(*(encoder.encode(wide(10, 20)) for _ in range(8)))
    assert backend.model_id == "model"
    assert backend.closed
    assert len(backend.threads) == 1
    assert backend.preprocess_threads.isdisjoint(backend.threads)
    assert 1 <= len(backend.preprocess_threads) <= 2


async def test_loading_proves_the_encoder() -> None:
    """Identity, width and type are known, and NaN is noticed, before it serves."""
    async with loaded() as (encoder, _):
        assert (encoder.identity.model, encoder.identity.revision) == ("model", "r1")
        assert encoder.identity.preprocessing.endswith("on white")
        assert encoder.hidden_size == WIDTH

    class NotFinite(MeanEncoder):
        def rows(self, image: Any) -> np.ndarray:
            return super().rows(image) * np.nan

    with pytest.raises(RuntimeError, match="NaN or infinity"):
        async with loaded(NotFinite()):
            pass


async def test_what_was_never_built_is_not_closed() -> None:
    """A backend that fails to load is left alone, and its error is what is raised."""

    class Absent(MeanEncoder):
        def build(self, model_id: str) -> None:
            raise OSError("no weights")

    backend = Absent()
    with pytest.raises(OSError, match="no weights"):
        async with loaded(backend):
            pass
    assert not backend.closed


async def test_concurrent_requests_share_batches() -> None:
    """What waits while the encoder works goes together, up to the cost limit."""
    async with loaded(encoder_cache_mib=0) as (encoder, backend):
        first = await occupied(encoder, backend)
        calls = [asyncio.create_task(encoder.encode(wide(10))) for _ in range(8)]
        await until(waiting(encoder, 8))
        backend.gate.set()
        await asyncio.gather(first, *calls)
    assert backend.batches == [1, 4, 4]


def test_a_batch_is_taken_in_order_within_the_budget() -> None:
    """The first that does not fit waits; those whose callers left are dropped."""

    class Answer:
        def __init__(self, done: bool = False) -> None:
            self._done = done

        def done(self) -> bool:
            return self._done

    costs = [2, 1, 9, 1, 3]
    waiting = deque(Job(i, cost, Answer(done=i == 2)) for i, cost in enumerate(costs))
    assert [job.item for job in take(waiting, 4)] == [0, 1, 3]
    assert [job.item for job in take(waiting, 4)] == [4]
    assert take(waiting, 4) == []


async def test_one_bad_image_costs_no_encoding() -> None:
    """The first failure in preprocess fails its request before anything is encoded."""
    async with loaded() as (encoder, backend):
        inputs = [*wide(10, 20), image_input(picture("blue"), refuse="it is blue")]
        with pytest.raises(InvalidArgument, match=r"images\[2\]: it is blue"):
            await encoder.encode(inputs)
        assert backend.batches == []


FAILURES = [
    ({"break": "x"}, Internal, "the encoder's preprocessing failed"),
    ({"forward": "refuse"}, InvalidArgument, r"images\[0\]: this picture cannot be encoded"),
    ({"forward": "break"}, Internal, "the encoder failed"),
    ({"break": "exit"}, Internal, "the encoder's preprocessing failed"),
    ({"break": "stop"}, Internal, "the encoder's preprocessing failed"),
    ({"forward": "exit"}, Internal, "the encoder failed"),
    ({"forward": "stop"}, Internal, "the encoder failed"),
    ({"forward": "late"}, Internal, "the encoder failed"),
    ({"forward": "nan"}, RuntimeError, "NaN or infinity, first at .0, 0. of its rows"),
    ({"forward": "wide"}, RuntimeError, "gives rows of 9 numbers, and gave 8"),
    ({"forward": "few"}, Internal, "the encoder failed"),
    ({"forward": "flat"}, Internal, "the encoder failed"),
    ({"forward": "integers"}, Internal, "the encoder failed"),
    ({"cost": "5"}, InvalidArgument, r"images\[0\]: expected a cost of 1 to 4, got 5"),
    ({"cost": "0"}, InvalidArgument, "expected a cost of 1 to 4, got 0"),
]


@pytest.mark.parametrize(("options", "kind", "match"), FAILURES)
async def test_failures_are_the_callers_or_ours(options, kind, match: str) -> None:
    """ValueError and TypeError are told to the caller, all else stays in the log."""
    async with loaded() as (encoder, _):
        with pytest.raises(kind, match=match) as raised:
            await encoder.encode([image_input(**options)])
        assert "secret" not in str(raised.value)
        assert len((await encoder.encode(wide(10))).rows) == 1


async def test_a_bad_item_does_not_fail_its_neighbours() -> None:
    """Of a batch that is refused, each item is tried alone."""
    async with loaded() as (encoder, backend):
        first = await occupied(encoder, backend, 50)
        bad = asyncio.create_task(encoder.encode([image_input(forward="refuse")]))
        good = asyncio.create_task(encoder.encode(wide(40)))
        await until(waiting(encoder, 2))
        backend.gate.set()
        await asyncio.gather(first, good)
        with pytest.raises(InvalidArgument, match="cannot be encoded"):
            await bad


async def test_over_the_bound_is_refused_at_once() -> None:
    """Images in the encoder are counted, waiting ones included."""
    async with loaded(max_pending_images=3) as (encoder, backend):
        backend.gate.clear()
        call = asyncio.create_task(encoder.encode(wide(10, 20)))
        await until(lambda: encoder.pending == 2)
        with pytest.raises(ResourceExhausted, match="2 of 3 images, no room for 2") as raised:
            await encoder.encode(wide(30, 40))
        assert raised.value.retry_after
        backend.gate.set()
        await call
        assert encoder.pending == 0


async def test_more_images_than_a_request_may_have_are_the_callers_mistake() -> None:
    """Coming back later does not help, so it is not RESOURCE_EXHAUSTED."""
    async with loaded(max_pending_images=3) as (encoder, _):
        with pytest.raises(InvalidArgument, match="images: expected at most 16, got 17"):
            await encoder.encode([image_input()] * 17)


@pytest.mark.parametrize("where", ["forward_batch", "preprocess"])
async def test_an_encoder_that_hangs_is_noticed(where: str) -> None:
    """Who waits for it is told, and so is the service, which cannot go on."""
    async with loaded(encoder_timeout=1.0, encoder_cache_mib=0) as (encoder, backend):
        crash: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        encoder.on_crash(crash.set_result)
        backend.gate.clear()
        options = {"break": "hang"} if where == "preprocess" else {}
        calls = [asyncio.create_task(encoder.encode([image_input(**options)])) for _ in range(6)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {Unavailable}
        assert isinstance(error := await crash, EncoderHangs)
        assert where in str(error)
        with pytest.raises(Unavailable, match="not running"):
            await encoder.encode(wide(10))
    assert not backend.closed, "its thread cannot be reached"
    backend.gate.set()
    backend.released.set()


async def test_cancelled_work_is_dropped_before_it_starts() -> None:
    """What nobody waits for any more is not encoded."""
    async with loaded(encoder_cache_mib=0) as (encoder, backend):
        first = await occupied(encoder, backend)
        second = asyncio.create_task(encoder.encode(wide(20)))
        await until(waiting(encoder, 1))
        second.cancel()
        await asyncio.wait({second})
        backend.gate.set()
        await first
        await encoder.encode(wide(30))
    assert backend.batches == [1, 1]


async def test_leaving_fails_what_is_left() -> None:
    """Nobody hangs when the encoder is closed under them."""
    backend = PreprocessingEncoder()
    encoder = Encoder(backend)
    await encoder.__aenter__()
    await encoder.load("model")
    backend.gate.clear()
    calls = [asyncio.create_task(encoder.encode(wide(10 * i))) for i in range(1, 8)]
    await until(lambda: backend.preprocessed == 8)
    leaving = asyncio.create_task(encoder.__aexit__(None, None, None))
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert {type(result) for result in results} == {Unavailable}
    backend.gate.set()
    await leaving
    assert backend.closed


async def test_equal_images_are_encoded_once() -> None:
    """Within a request, at the same time, and later."""
    async with loaded() as (encoder, backend):
        same = [image_input(picture("blue"))] * 3
        features = await encoder.encode(same)
        assert features.splits == (0, 2, 4, 6)
        await asyncio.gather(*(encoder.encode([image_input(picture("green"))]) for _ in range(5)))
        await encoder.encode(same)
    assert sum(backend.batches) == 2


async def test_without_a_cache_nothing_is_shared() -> None:
    """The flag turns all of it off."""
    async with loaded(encoder_cache_mib=0) as (encoder, backend):
        await asyncio.gather(*(encoder.encode([image_input()] * 2) for _ in range(3)))
    assert sum(backend.batches) == 6


async def test_options_and_backgrounds_are_other_images() -> None:
    """The key has all that the encoding depends on."""
    clear = picture((0, 0, 0, 0), mode="RGBA")
    async with loaded() as (encoder, backend):
        await encoder.encode([image_input(clear), image_input(clear, detail="high")])
        assert sum(backend.batches) == 2
        identity = encoder.identity
    async with loaded(images=ImageOptions(image_background="black")) as (other, _):
        assert other.identity.preprocessing != identity.preprocessing
        assert (await other.encode([image_input(clear)])).rows[0, 0] == 0


async def test_a_caller_that_leaves_does_not_take_the_work_along() -> None:
    """Of two who wait for one image, the first may go."""
    async with loaded() as (encoder, backend):
        first = await occupied(encoder, backend)
        second = asyncio.create_task(encoder.encode(wide(10)))
        await until(lambda: encoder._flights._waiting.total() == 2)
        first.cancel()
        await asyncio.wait({first})
        backend.gate.set()
        assert len((await second).rows) == 1
    assert sum(backend.batches) == 1


def rows(count: int) -> np.ndarray:
    """Rows of 100 bytes."""
    return np.zeros((count, 25), np.float32)


def test_the_cache_forgets_the_least_recently_used() -> None:
    """Bytes are bounded; what was asked for lately stays."""
    cache = RowCache(300)
    for key in (b"a", b"b", b"c"):
        cache.put(key, rows(1))
    assert cache.get(b"a") is not None
    cache.put(b"d", rows(1))
    assert [key in cache for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    cache.put(b"large", rows(4))
    assert b"large" not in cache
    assert b"a" in cache
    cache.put(b"e", rows(3))
    assert [key in cache for key in (b"a", b"c", b"d", b"e")] == [False, False, False, True]


async def test_shared_work_ends_when_everybody_left() -> None:
    """The last who leaves turns off the light."""
    flights, cancelled = Flights(), asyncio.Event()

    async def work() -> np.ndarray:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return rows(1)

    callers = [asyncio.create_task(flights.join(b"k", work)) for _ in range(2)]
    await until(lambda: flights._waiting.total() == 2)
    callers[0].cancel()
    await asyncio.wait({callers[0]})
    assert not cancelled.is_set()
    callers[1].cancel()
    await asyncio.wait_for(cancelled.wait(), 60)
    assert b"k" not in flights


async def test_who_comes_when_everybody_left_starts_anew() -> None:
    """What is being cancelled is not joined: it would look as if the newcomer had left."""
    flights, begun = Flights(), asyncio.Event()

    async def slow() -> np.ndarray:
        begun.set()
        await asyncio.sleep(60)
        return rows(1)

    async def quick() -> np.ndarray:
        return rows(2)

    first = asyncio.create_task(flights.join(b"k", slow))
    await begun.wait()
    first.cancel()
    second = asyncio.create_task(flights.join(b"k", quick))
    assert len(await second) == 2
    assert first.cancelled()


def test_a_preprocess_that_is_never_called_stops_the_start() -> None:
    """Overriding it with no threads for it is a mistake that would stay unseen."""

    class Forgotten(MeanEncoder):
        def preprocess(self, raw: Any) -> Preprocessed:
            return Preprocessed(raw)

    with pytest.raises(ValueError, match=r"Forgotten.preprocess would never be called"):
        check_backend(Forgotten())


@pytest.mark.parametrize(
    ("field", "value"), [("preprocess_concurrency", -1), ("max_batch_cost", 0)]
)
def test_settings_of_a_backend_are_checked(field: str, value: int) -> None:
    """Values that mean nothing are refused by name."""
    backend = MeanEncoder()
    setattr(backend, field, value)
    with pytest.raises(ValueError, match=f"MeanEncoder.{field}: expected at least"):
        check_backend(backend)


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("nothing", "expected package.module:Class"),
        ("no.such.module:X", "no.such.module:X"),
        ("tests.encoder_service.backends:Missing", "Missing"),
        ("tests.encoder_service.backends:WIDTH", "expected a VisionEncoderBackend"),
    ],
)
def test_backends_are_named_by_import_path(path: str, match: str) -> None:
    """What cannot be loaded says why."""
    assert isinstance(load_backend("tests.encoder_service.backends:MeanEncoder"), MeanEncoder)
    with pytest.raises(ValueError, match=match):
        load_backend(path)


def test_a_backend_has_only_two_methods_to_write() -> None:
    """Build and forward_batch; the rest has defaults."""

    class Least(VisionEncoderBackend):
        image_token_id = 1

        def build(self, model_id: str) -> None:
            """Nothing."""

        def forward_batch(self, items: Any) -> Any:
            return [np.zeros((1, 2), np.float32) for _ in items]

    check_backend(Least())
    assert Least().preprocess("raw") == Preprocessed("raw", 1)
    assert Least().close() is None


def test_rows_are_our_own_and_read_only() -> None:
    """A slice of a batch does not keep the batch alive, nor change with it."""
    batch = np.zeros((4, 2, WIDTH), np.float32)
    ours = to_rows(batch[1])
    batch += 1
    assert not ours.any()
    assert ours.base is None
    with pytest.raises(ValueError, match="read-only"):
        ours[0] = 1

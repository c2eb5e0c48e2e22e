"""What a request took of memory is free when it ends, however it ends, and is bounded."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image as Pillow

from tensorway import images
from tensorway.encoding.admission import Admission
from tensorway.encoding.encoder import Encoder
from tensorway.encoding.options import EncoderOptions
from tensorway.errors import ResourceExhausted, TooLarge
from tensorway.options import MIB
from tensorway.v1 import encoder_pb2, handoff_pb2
from tests.encoder_service.backends import MeanEncoder, PreprocessingEncoder
from tests.encoder_service.pictures import encoded, image_input, picture
from tests.encoder_service.test_encoding import until
from tests.encoder_service.test_services import asked, both

BIG = (600, 500)


class Pictures:
    """All that was opened, inspected or decoded, for as long as something holds it."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Any]] = []

    def watch(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with its results remembered."""

        def made(*args: Any) -> Any:
            result = make(*args)
            self._refs.append(weakref.ref(result))
            return result

        return made

    async def gone(self) -> None:
        """Wait until nothing is held; threads need a moment to let go."""
        async with asyncio.timeout(30):
            while any(ref() is not None for ref in self._refs):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pictures]:
    """What refers to itself stays until the end of the test."""
    pictures = Pictures()
    for name in ("_open", "inspect", "decode"):
        monkeypatch.setattr(images, name, pictures.watch(getattr(images, name)))
    gc.disable()
    # What is logged with its traceback would be kept by pytest.
    logging.disable()
    yield pictures
    logging.disable(logging.NOTSET)
    gc.enable()


def cut() -> handoff_pb2.ImageInput:
    """A picture that ends too early."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = picture_of(noise)
    return image_input(data[: len(data) // 2])


def picture_of(pixels: np.ndarray) -> bytes:
    """A PNG."""
    return encoded(Pillow.fromarray(pixels))


ENDS = {
    "answered": [image_input(), image_input(picture("blue"))],
    "no image": [image_input(), image_input(b"x" * MIB)],
    "no image, with its id": [handoff_pb2.ImageInput(data=b"x", id="cat")],
    "broken": [image_input(), cut()],
    "refused by preprocess": [image_input(), image_input(picture("blue"), refuse="no")],
    "preprocess breaks": [image_input(**{"break": "x"})],
    "costs too much": [image_input(cost="9")],
    "refused by forward": [image_input(forward="refuse"), image_input()],
    "forward breaks": [image_input(forward="break"), image_input()],
}


@pytest.mark.parametrize("inputs", ENDS.values(), ids=ENDS)
async def test_pictures_go_with_their_request(pictures: Pictures, inputs: list[Any]) -> None:
    """Nothing waits for the garbage collector, which may be far away: pictures are large."""
    async with both() as running:
        request = asked(*inputs, ids=[7] * len(inputs))
        for _ in range(2):
            try:
                async for _part in running.encoder.Generate(request, timeout=60):
                    pass
            except grpc.aio.AioRpcError as error:
                assert error.code().name in ("INVALID_ARGUMENT", "INTERNAL")  # noqa: PT017
        await pictures.gone()


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_pictures_of_callers_who_left_go_too(pictures: Pictures, how: str) -> None:
    """Cancelled while they wait for the encoder, in it, and before it."""
    async with both() as running:
        running.backend.gate.clear()
        calls = [
            running.encoder.Encode(
                encoder_pb2.EncodeRequest(model="eyes", images=[image_input(picture((i, 0, 0)))]),
                timeout=1 if how == "deadline" else 60,
            )
            for i in range(8)
        ]
        reading = [asyncio.ensure_future(call.read()) for call in calls]
        # One that is late may find its deadline passed before the others came.
        await until(
            lambda: running.handoff.encoder.pending == 8 or all(task.done() for task in reading)
        )
        if how == "cancel":
            for call in calls:
                call.cancel()
        await asyncio.wait(reading)
        running.backend.gate.set()
        await pictures.gone()
        assert running.handoff.encoder.pending == 0


def test_the_bound_is_one_of_memory_too() -> None:
    """Who asks for more than there ever is need not come again; others later."""
    admission = Admission(max_images=10, max_bytes=100)
    with admission.enter(1) as first, admission.enter(1) as second:
        first.take(60)
        with pytest.raises(ResourceExhausted, match=r"60 of 100 .* for 50 .--max-pen") as raised:
            second.take(50)
        assert raised.value.retry_after
        assert not isinstance(raised.value, TooLarge)
        second.take(40)
        with pytest.raises(TooLarge, match="needs 110 bytes of memory"):
            first.take(50)
        with pytest.raises(ResourceExhausted), admission.hold(1):
            pass
    assert (admission.bytes, admission.images) == (0, 0)
    with admission.hold(100):
        assert admission.bytes == 100
    assert admission.bytes == 0


@asynccontextmanager
async def bounded(mib: int) -> AsyncIterator[tuple[Encoder, MeanEncoder]]:
    """An encoder with so much memory for images."""
    backend = PreprocessingEncoder()
    async with Encoder(backend, EncoderOptions(max_pending_mib=mib)) as encoder:
        await encoder.load("model")
        yield encoder, backend


async def test_small_files_of_many_pixels_are_bounded() -> None:
    """A picture counts with its pixels, from its header, before they are in memory."""
    async with bounded(mib=1) as (encoder, backend):
        backend.gate.clear()
        first = asyncio.create_task(encoder.encode([image_input(picture("red", BIG))]))
        await until(lambda: backend.preprocessed > 1)
        with pytest.raises(ResourceExhausted, match=r"no room for 900000 .--max-pending-mib"):
            await encoder.encode([image_input(picture("blue", BIG))])
        backend.gate.set()
        await first
        await encoder.encode([image_input(picture("blue", BIG))])
        both_cached = [image_input(picture(color, BIG)) for color in ("red", "blue")]
        assert (await encoder.encode(both_cached)).count == 2
        with pytest.raises(TooLarge, match="--max-pending-mib"):
            await encoder.encode([image_input(picture("green", (600, 600)))])


async def test_results_that_nobody_reads_are_bounded() -> None:
    """A reader that stops holds its result, and so much of the bound; its end gives it back."""

    class Large(MeanEncoder):
        def rows(self, image: Any) -> np.ndarray:
            return np.full((2_000_000 if image.width > 64 else 1, 8), 0.5, np.float32)

    async with both(Large(), pending_mib=100) as running:
        request = encoder_pb2.EncodeRequest(
            model="eyes", images=[image_input(picture("red", (100, 10)))]
        )
        slow = running.encoder.Encode(request)
        assert (await slow.read()).WhichOneof("part") == "header"
        with pytest.raises(grpc.aio.AioRpcError, match="no room for 64000000") as raised:
            [_ async for _ in running.encoder.Encode(request, timeout=60)]
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        slow.cancel()
        await until(lambda: not running.servicer.load().requests)
        parts = [part async for part in running.encoder.Encode(request, timeout=60)]
        assert parts[-1].end.rows == 2_000_000

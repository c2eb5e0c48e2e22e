"""EncoderService on real servers, before a generator with an echo engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from encoder_service import generators
from encoder_service.handoff import ExternalEncoderHandoff
from encoder_service.options import EncoderServiceOptions
from encoder_service.servicer import EncoderServicer
from generator_service.engine import EngineInfo
from generator_service.model import Generator
from generator_service.options import GeneratorOptions
from generator_service.servicer import GeneratorServicer, Holder
from tensorway.channels import Dialer
from tensorway.encoding.options import EncoderOptions
from tensorway.errors import FailedPrecondition, InvalidArgument
from tensorway.handoff import frames, header, stream
from tensorway.handoff.features import Features
from tensorway.options import DialOptions, ListenOptions
from tensorway.prompt import ModelShape
from tensorway.serving import Server
from tensorway.v1 import encoder_pb2, encoder_pb2_grpc, generator_pb2, handoff_pb2
from tests.encoder_service.backends import TOKEN, MeanEncoder, PreprocessingEncoder
from tests.encoder_service.pictures import image_input, picture
from tests.generator_service.fakes import EchoEngine
from tests.handoff.services import Answer, gathered

IDS = [5, TOKEN, 6]


@dataclass
class Both:
    """An encoder service and the generator behind it."""

    backend: MeanEncoder
    engine: EchoEngine
    generator: Generator
    handoff: ExternalEncoderHandoff
    servicer: EncoderServicer
    encoder: Any


@asynccontextmanager
async def both(
    backend: MeanEncoder | None = None,
    engine: EchoEngine | None = None,
    accepts: dict[str, Any] | None = None,
    pending_mib: int = 100,
    **flags: Any,
) -> AsyncIterator[Both]:
    """Both services; `accepts` are flags of the generator, the others of the encoder."""
    backend, engine = backend or PreprocessingEncoder(), engine or EchoEngine()
    options = EncoderServiceOptions(**flags)
    async with AsyncExitStack() as stack:
        holder = Holder()
        generator_options = GeneratorOptions(**(accepts or {}))
        holder.loaded = Generator(engine, generator_options, max_images=4)
        servicer = GeneratorServicer(holder, generator_options)
        behind = await stack.enter_async_context(Server(ListenOptions(), [servicer.service()]))
        address = f"127.0.0.1:{behind.port}"
        bounds = EncoderOptions(max_pending_images=8, max_pending_mib=pending_mib)
        handoff = ExternalEncoderHandoff(backend, address, bounds)
        stack.push_async_callback(handoff.shutdown)
        await handoff.load("model")
        backend.batches.clear()
        front = EncoderServicer(handoff, options)
        front.name = "eyes"
        server = await stack.enter_async_context(Server(ListenOptions(), [front.service()]))
        dialer = Dialer(DialOptions())
        channel = await stack.enter_async_context(dialer.open(f"127.0.0.1:{server.port}"))
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)
        yield Both(backend, engine, holder.loaded, handoff, front, stub)


def asked(
    *images: handoff_pb2.ImageInput, ids: list[int] = IDS, **fields: Any
) -> encoder_pb2.EncoderServiceGenerateRequest:
    """A request for tokens."""
    fields = {"model": "eyes", "target_model": "echo", **fields}
    return encoder_pb2.EncoderServiceGenerateRequest(prompt_token_ids=ids, images=images, **fields)


async def generated(running: Both, *images: Any, timeout: float = 60.0, **fields: Any) -> Answer:
    """The whole answer."""
    return await gathered(running.encoder.Generate(asked(*images, **fields), timeout=timeout))


async def test_images_become_rows_of_the_prompt() -> None:
    """From pixels to the engine's input, through both services."""
    async with both() as running:
        image = image_input(picture((51, 51, 51), (20, 10)))
        answer = await generated(running, image, request_id="mine")
        (prompt,) = running.engine.prompts
    assert prompt.token_ids.tolist() == [5, 7, 7, 6] == answer.token_ids
    assert np.allclose(prompt.rows[1:3].astype(np.float32), 0.2, atol=1e-3)
    assert not prompt.rows[[0, 3]].any()
    assert answer.request_id == "mine"


async def test_text_alone_goes_through() -> None:
    """No image, no encoder result."""
    async with both() as running:
        assert (await generated(running, ids=[5, 6])).token_ids == [5, 6]
        assert running.engine.prompts[0].rows is None
        assert running.backend.batches == []


async def test_parameters_go_through() -> None:
    """Sampling parameters and the wish for text reach the generator."""
    params = generator_pb2.SamplingParams(max_tokens=2, seed=5)
    async with both() as running:
        answer = await generated(running, image_input(), sampling_params=params, return_text=True)
        assert running.engine.params[0].sampling == {"max_tokens": 2, "seed": 5}
        assert running.engine.params[0].text
    assert answer.text == "5 7"


WRONG = {
    "no placeholder": ([5, 6], 1, "expected 1 placeholder tokens 7, .* got 0"),
    "typed placeholder": ([7, 5, 7], 1, r"expected 1 .* got 2, at \[0, 2\]"),
    "placeholder without images": ([7, 5], 0, "expected 0 placeholder tokens 7, .* got 1"),
    "images without placeholders": ([5], 2, "expected 2 .* got 0"),
}


@pytest.mark.parametrize(("ids", "count", "match"), WRONG.values(), ids=WRONG)
async def test_placeholders_are_counted_before_encoding(ids, count: int, match: str) -> None:
    """A prompt that cannot fit costs no encoding."""
    async with both() as running:
        with pytest.raises(grpc.aio.AioRpcError, match=match) as raised:
            await generated(running, *[image_input()] * count, ids=ids)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert running.backend.batches == []
        assert running.engine.prompts == []


ERRORS = {
    "bad image": (
        [handoff_pb2.ImageInput(data=b"x")],
        {},
        "INVALID_ARGUMENT",
        r"images\[0\]: expected an image",
    ),
    "refused": ([image_input(refuse="no")], {}, "INVALID_ARGUMENT", r"images\[0\]: no"),
    "broken": ([image_input(forward="break")], {}, "INTERNAL", "the encoder failed"),
    "unknown model": ([image_input()], {"model": "x"}, "NOT_FOUND", "'x' .* known: eyes"),
    "unknown target": ([image_input()], {"target_model": "x"}, "NOT_FOUND", "'x' .* known: echo"),
    "no target": ([image_input()], {"target_model": ""}, "INVALID_ARGUMENT", "target_model"),
    "generator refuses": (
        [image_input()],
        {"sampling_params": generator_pb2.SamplingParams(top_p=2)},
        "INVALID_ARGUMENT",
        "sampling_params.top_p",
    ),
    "too long": ([image_input()], {"ids": [7, *[5] * 70]}, "INVALID_ARGUMENT", "at most 63 tokens"),
    "long id": ([image_input()], {"request_id": "x" * 129}, "INVALID_ARGUMENT", "request_id"),
}


@pytest.mark.parametrize(("images", "fields", "code", "match"), ERRORS.values(), ids=ERRORS)
async def test_errors_keep_their_code_on_the_way(images, fields, code: str, match: str) -> None:
    """Whoever refuses, the caller reads the same code and message."""
    async with both() as running:
        with pytest.raises(grpc.aio.AioRpcError, match=match) as raised:
            await generated(running, *images, **fields)
        assert raised.value.code().name == code
        assert running.engine.prompts == []
        assert len((await generated(running, image_input())).token_ids) == 4


async def test_large_results_that_are_refused_keep_their_code_too() -> None:
    """A generator that refuses while chunks are on their way is still understood."""

    class Large(MeanEncoder):
        def rows(self, image: Any) -> np.ndarray:
            return np.full((400_000, 8), 0.5, np.float32)

    shape = ModelShape(8, 100, 500_000, np.dtype(np.float32))
    info = EngineInfo(("echo",), "nowhere", shape, 5, True)
    async with both(Large(), EchoEngine(info=info)) as running:
        params = generator_pb2.SamplingParams(top_p=2)
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError, match="top_p") as raised:
                await generated(running, image_input(), sampling_params=params)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await generated(running, image_input())).usage.prompt_tokens == 400_002


async def encoded(running: Both, *images: Any, **fields: Any) -> list[Any]:
    """All messages of an encoding."""
    request = encoder_pb2.EncodeRequest(model="eyes", images=images, **fields)
    return [part async for part in running.encoder.Encode(request, timeout=60)]


def rebuilt(parts: list[Any]) -> tuple[header.Layout, Features]:
    """The features in the messages."""
    head, *rest = parts
    layout = header.read(head.header, header.Accepts(1 << 30, 8))
    assembly = stream.Assembly(layout)
    for part in rest[:-1]:
        assembly.add(frames.Chunk(part.chunk.offset, memoryview(part.chunk.data)))
    features = assembly.finish(rest[-1].end)
    stream.check_digests(features, layout)
    return layout, features


async def test_encode_streams_header_chunks_and_end() -> None:
    """A caller of any kind can rebuild the features."""
    async with both() as running:
        parts = await encoded(running, image_input(picture("white", (30, 5))), image_input())
        _, features = rebuilt(parts)
    assert parts[0].header.version == 0
    assert features.splits == (0, 3, 5)
    assert np.allclose(features.rows[:3], 1)


async def test_callers_say_which_versions_they_read() -> None:
    """Version 0 for those who say nothing, the newest common one for the others."""
    async with both() as running:
        for accepted, version in ([], 0), ([0], 0), ([0, 1], 1), ([1], 1), ([1, 9], 1):
            (first, *_) = await encoded(running, image_input(), accepted_versions=accepted)
            assert first.header.version == version
        assert first.header.encoder.model == "model"
        with pytest.raises(grpc.aio.AioRpcError, match="version: no common one") as raised:
            await encoded(running, image_input(), accepted_versions=[9])
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_version_1_is_sent_in_the_narrower_type() -> None:
    """A generator in bfloat16 gets bfloat16; without version 1 the encoder's own type."""
    async with both() as running:
        for versions, size in ([1], 2), ([0], 4):
            parts = await encoded(
                running, image_input(), accepted_versions=versions, target_model="echo"
            )
            assert rebuilt(parts)[1].rows.dtype.itemsize == size


async def test_encode_needs_an_image() -> None:
    """Nothing in, error out."""
    async with both() as running:
        with pytest.raises(grpc.aio.AioRpcError, match="images: expected at least one"):
            await encoded(running)


async def test_what_the_generator_cannot_take_is_known_before_encoding() -> None:
    """Width and required encoder are compared first; a result's size before it is sent."""
    shape = ModelShape(16, 100, 64, np.dtype(np.float32))
    wide = EchoEngine(info=EngineInfo(("echo",), "nowhere", shape, 5, True))
    async with both(engine=wide) as running:
        with pytest.raises(grpc.aio.AioRpcError, match="needs rows of 16 numbers") as raised:
            await generated(running, image_input())
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert running.backend.batches == []
    async with both(accepts={"require_encoder": "other"}) as running:
        with pytest.raises(grpc.aio.AioRpcError, match="results of other"):
            await generated(running, image_input())
        assert running.backend.batches == []
    async with both(accepts={"require_encoder": "model@r1"}) as running:
        assert (await generated(running, image_input())).token_ids == [5, 7, 7, 6]
    async with both() as running:
        with pytest.raises(grpc.aio.AioRpcError, match="at most 4 images, got 5"):
            await generated(running, *[image_input()] * 5, ids=[7] * 5)
        assert running.backend.batches == []


async def test_only_what_a_generator_needs_goes_on() -> None:
    """Images, their ids and options stay behind; so does what nobody knows."""
    request = generator_pb2.GenerateStart(
        model="ignored",
        prompt_token_ids=IDS,
        images=[image_input(picture(), detail="high")],
        sampling_params=generator_pb2.SamplingParams(seed=1),
        return_text=True,
        request_id="mine",
    )
    # A field that the contract does not have, number 15.
    request.MergeFromString(b"\x7a\x04hint")
    async with both() as running:
        prepared = await running.handoff.prepare_request(request, target_model="echo")
        assert {field.name for field, _ in prepared.start.ListFields()} == {
            "model",
            "prompt_token_ids",
            "sampling_params",
            "encoder_result",
            "return_text",
            "request_id",
        }
        assert b"hint" not in prepared.start.SerializeToString()
        assert prepared.start.model == "echo"
        answers = [part async for part in running.handoff.generate(prepared)]
    assert [token for part in answers for token in part.token_ids] == [5, 7, 7, 6]


async def test_an_application_can_send_by_itself() -> None:
    """Without an address the handoff prepares, and says that it cannot send."""
    handoff = ExternalEncoderHandoff(MeanEncoder())
    await handoff.load("model")
    try:
        request = generator_pb2.GenerateStart(prompt_token_ids=IDS, images=[image_input()])
        prepared = await handoff.prepare_request(request, target_model="echo")
        assert prepared.start.encoder_result.version == 0
        with pytest.raises(FailedPrecondition, match="no generator is known"):
            await anext(handoff.generate(prepared))
        with pytest.raises(FailedPrecondition, match="no generator is known"):
            await handoff.encode(request.images, target_model="echo")
        request = generator_pb2.GenerateStart(prompt_token_ids=IDS)
        with pytest.raises(InvalidArgument, match="expected 0 placeholder"):
            await handoff.prepare_request(request, target_model="echo")
    finally:
        await handoff.shutdown()


@pytest.mark.parametrize("stage", ["encoding", "generating"])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_leaving_reaches_every_stage(stage: str, how: str) -> None:
    """Cancel and deadline end the work wherever it is."""
    async with both(engine=EchoEngine(delay=60)) as running:
        if stage == "encoding":
            running.backend.gate.clear()
        request = asked(image_input(picture("blue")), ids=[7, *range(20, 50)])
        call = running.encoder.Generate(request, timeout=2 if how == "deadline" else 60)
        if stage == "generating":
            await call.read()
            assert running.engine.running == 1
        else:
            while not running.handoff.encoder.pending:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if how == "cancel":
            call.cancel()
        async with asyncio.timeout(30):
            while (  # noqa: ASYNC110
                running.servicer.load().requests
                or running.handoff.encoder.pending
                or running.engine.running
                or running.generator.load().requests
            ):
                await asyncio.sleep(0.01)
        running.backend.gate.set()


async def test_requests_are_bounded_in_the_service_and_in_the_encoder() -> None:
    """Over either bound is RESOURCE_EXHAUSTED at once, and nothing accepted is lost."""
    async with both(max_requests=6) as running:
        running.backend.gate.clear()
        calls = [
            asyncio.create_task(generated(running, image_input(picture((i, 0, 0)))))
            for i in range(10)
        ]
        while sum(call.done() for call in calls) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running.backend.gate.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
        assert len(errors) == 4
        assert {error.code() for error in errors} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        answers = [result for result in results if isinstance(result, Answer)]
        assert {tuple(answer.token_ids) for answer in answers} == {(5, 7, 7, 6)}


async def test_a_generator_that_is_silent_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not the caller's time that was up."""
    monkeypatch.setattr(generators, "_ASK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with both() as running:
            handoff = ExternalEncoderHandoff(MeanEncoder(), address)
            await handoff.load("model")
            running.servicer._handoff = handoff
            try:
                with pytest.raises(grpc.aio.AioRpcError, match=r"silent for 0.2 s") as raised:
                    await generated(running, image_input(), timeout=60)
            finally:
                await handoff.shutdown()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_numbers_that_do_not_fit_the_generators_type_are_refused_before_it() -> None:
    """Infinity would be the encoder's mistake to the generator, and the caller's to us."""

    class Large(MeanEncoder):
        def rows(self, image: Any) -> np.ndarray:
            return np.full((1, 8), 1e6, np.float32)

    shape = ModelShape(8, 100, 64, np.dtype(np.float16))
    half = EchoEngine(info=EngineInfo(("echo",), "nowhere", shape, 5, True))
    async with both(Large(), half) as running:
        with pytest.raises(grpc.aio.AioRpcError, match="does not fit float16") as raised:
            await generated(running, image_input())
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_generator_that_is_gone_is_unavailable() -> None:
    """The caller may try elsewhere."""
    async with both() as running:
        handoff = ExternalEncoderHandoff(MeanEncoder(), "127.0.0.1:1")
        await handoff.load("model")
        running.servicer._handoff = handoff
        try:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await generated(running, image_input())
        finally:
            await handoff.shutdown()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_wait_for_no_encoder_that_is_loading() -> None:
    """Before it is loaded it says so, at once."""
    async with both() as running:
        running.servicer.name = ""
        with pytest.raises(grpc.aio.AioRpcError, match="loading") as raised:
            await generated(running, image_input())
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_without_a_deadline_get_one() -> None:
    """Nothing lasts for ever."""
    async with both(request_timeout=0.3) as running:
        running.backend.gate.clear()
        with pytest.raises(grpc.aio.AioRpcError, match=r"no answer within 0.3 s") as raised:
            await generated(running, image_input(picture("blue")), timeout=None)
        running.backend.gate.set()
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

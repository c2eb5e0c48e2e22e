"""GeneratorService on an echo engine: what reaches the engine, and what does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest

from tensorway.errors import from_rpc_error
from tensorway.handoff import frames, header, stream
from tensorway.handoff.features import Features
from tensorway.v1 import generator_pb2, handoff_pb2, model_pb2, tensor_pb2
from tests.generator_service.fakes import EchoEngine

TOKEN = 7
IDS = [5, TOKEN, 6]
LONG = list(range(20, 60))


def features(*lengths: int, width: int = 8) -> Features:
    """Rows for images of so many rows each."""
    rows = np.arange(sum(lengths) * width, dtype=np.float32).reshape(-1, width)
    return Features(rows, (0, *(int(end) for end in np.cumsum(lengths))), TOKEN)


def opening(ids: list[int] = IDS, result: Features | None = None, **fields: Any):
    """The first message."""
    fields = {"model": "echo", **fields}
    head = None if result is None else header.write(result)
    return generator_pb2.GenerateRequest(
        start=generator_pb2.GenerateStart(prompt_token_ids=ids, encoder_result=head, **fields)
    )


def request(result: Features, ids: list[int] = IDS, **fields: Any) -> list[Any]:
    """All messages of a request with images."""
    return [opening(ids, result, **fields), *stream.cut(result.rows)]


async def refused(
    running, messages: list[Any], code: grpc.StatusCode, match: str | None = None
) -> Any:
    """The error that the messages get; the engine has seen nothing of them."""
    seen = len(running.engine.prompts)
    with pytest.raises(grpc.aio.AioRpcError, match=match) as raised:
        await running.service.generate(messages)
    assert raised.value.code() is code, raised.value.details()
    assert len(running.engine.prompts) == seen
    return from_rpc_error(raised.value)


async def test_the_rebuilt_prompt_is_what_the_engine_receives(serve: Any) -> None:
    """Tokens, mask and rows reach the engine as the builder made them."""
    async with serve() as running:
        answer = await running.service.generate(request(features(2)))
        (prompt,) = running.engine.prompts
        assert prompt.token_ids.tolist() == [5, 7, 7, 6] == answer.token_ids
        assert prompt.is_token.tolist() == [True, False, False, True]
        assert prompt.rows[1:3].astype(np.float32).tolist() == features(2).rows.tolist()
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 4)
        assert answer.usage.total_tokens == 8
        assert answer.messages == 4


async def test_text_alone_is_generated_from(serve: Any) -> None:
    """A prompt without images needs no encoder result; aliases are names, too."""
    async with serve() as running:
        answer = await running.service.generate([opening([5, 6], model="alias")])
        assert (answer.token_ids, answer.text) == ([5, 6], "5 6")
        assert running.engine.prompts[0].rows is None


@pytest.mark.parametrize("version", [0, 1])
async def test_all_element_types_and_versions_arrive_in_the_models_type(
    serve: Any, version: int
) -> None:
    """Results in every type and version become rows of the model's type."""
    encoder = handoff_pb2.EncoderIdentity(model="eye", element_type=1)
    async with serve() as running:
        for dtype in ("float32", "float16", "bfloat16"):
            plain = features(2, 1)
            rows = plain.rows.astype(getattr(ml_dtypes, dtype, dtype))
            result = Features(rows, plain.splits, TOKEN)
            head = header.write(result, version, encoder)
            first = opening([7, 5, 7])
            first.start.encoder_result.CopyFrom(head)
            await running.service.generate([first, *stream.cut(result.rows)])
            rows = running.engine.prompts[-1].rows
            assert rows.dtype == running.engine.info.shape.dtype
            expected = result.rows.astype(rows.dtype)
            assert np.array_equal(rows[[0, 1, 3]], expected)


def chunk(data: bytes, offset: int = 0) -> bytes:
    """One chunk."""
    return frames.chunk(offset, memoryview(data))


FIRST, *REST = request(features(2))
END = REST[-1]
WRONG_STREAMS = {
    "nothing": ([], "stream: expected start, got nothing"),
    "chunk first": (REST, "stream: expected start, got chunk"),
    "end first": ([END], "stream: expected start, got end"),
    "empty message": ([b""], "stream: expected start, got nothing"),
    "garbage": ([b"\xff\xff\xff"], "not a valid GenerateRequest"),
    "a pickle": ([b"\x80\x04\x95\x00.", *REST], "not a valid GenerateRequest"),
    "two starts": ([FIRST, FIRST], "stream: expected chunk or end, got another message"),
    "ends early": ([FIRST], "stream: expected end, got the stream's end after 0 bytes"),
    "no end": ([FIRST, *REST[:-1]], "expected end, got the stream's end after 64 bytes"),
    "end before chunks": ([FIRST, END], "bytes received: expected 64, got 0"),
    "garbage in it": ([FIRST, b"\xff\xff"], "no message of it"),
    "chunk after end": ([FIRST, *REST, REST[0]], "stream: expected the stream's end, got chunk"),
    "chunks without a header": ([opening([5, 6]), *REST], "got chunk .is its header missing"),
    "gap": ([FIRST, chunk(bytes(8)), chunk(bytes(8), 9)], "chunk.offset: expected 8, got 9"),
    "excess": ([FIRST, chunk(bytes(65))], "chunk.data: expected at most 64 bytes"),
}


@pytest.mark.parametrize(("messages", "match"), WRONG_STREAMS.values(), ids=WRONG_STREAMS)
async def test_messages_out_of_order_are_refused(serve: Any, messages, match: str) -> None:
    """The stream is start, chunks, end, and nothing else."""
    async with serve() as running:
        await refused(running, messages, grpc.StatusCode.INVALID_ARGUMENT, match)


def changed(**fields: Any) -> list[Any]:
    """A request whose start was changed."""
    first = generator_pb2.GenerateRequest()
    first.CopyFrom(FIRST)
    for name, value in fields.items():
        field = getattr(first.start, name)
        if isinstance(value, list):
            del field[:]
            field.extend(value)
        else:
            setattr(first.start, name, value)
    return [first, *REST]


BAD_STARTS = {
    "no tokens": (changed(prompt_token_ids=[]), "prompt_token_ids: .*got none"),
    "token out of range": (changed(prompt_token_ids=[5, 7, 100]), r"prompt_token_ids\[2\]"),
    "huge token": (changed(prompt_token_ids=[7, 2**32 - 2]), "got 4294967294"),
    "no placeholder": (changed(prompt_token_ids=[5]), "expected 1 placeholder tokens 7"),
    "a typed placeholder": (changed(prompt_token_ids=[7, 5, 7]), r"got 2, at \[0, 2\]"),
    "too long": (changed(prompt_token_ids=[7, *[5] * 62]), "at most 63 tokens"),
    "very long": (changed(prompt_token_ids=[5] * 100_000), "at most 63 tokens"),
    "images beside it": (
        changed(images=[handoff_pb2.ImageInput(data=b"x")]),
        "images: expected none beside an encoder result, got 1",
    ),
    "long id": (changed(request_id="x" * 129), "request_id: expected at most 128"),
}


@pytest.mark.parametrize(("messages", "match"), BAD_STARTS.values(), ids=BAD_STARTS)
async def test_bad_requests_never_reach_the_engine(serve: Any, messages, match: str) -> None:
    """What does not fit the model is refused by name before chunks are waited for."""
    async with serve() as running:
        await refused(running, messages[:1], grpc.StatusCode.INVALID_ARGUMENT, match)


async def test_unknown_fields_beside_a_result_are_refused(serve: Any) -> None:
    """Fields of another dialect (routing hints, processor arguments) do not slip through."""
    first = generator_pb2.GenerateRequest()
    first.CopyFrom(FIRST)
    first.start.MergeFromString(model_pb2.Model(root="hint").SerializeToString())
    async with serve() as running:
        messages = [first, *REST]
        await refused(running, messages, grpc.StatusCode.INVALID_ARGUMENT, "got number 13")


async def test_unknown_models_are_not_found(serve: Any) -> None:
    """The error names what is served."""
    async with serve() as running:
        messages = [opening(model="other")]
        await refused(running, messages, grpc.StatusCode.NOT_FOUND, "'other'.*known: echo")


async def test_images_need_an_encoder(serve: Any) -> None:
    """A generator without an encoder says how to ask instead."""
    async with serve() as running:
        messages = [opening(images=[handoff_pb2.ImageInput(data=b"x")])]
        code = grpc.StatusCode.FAILED_PRECONDITION
        await refused(running, messages, code, "send an encoder result")


async def test_results_over_the_limit_are_refused_by_their_header(serve: Any) -> None:
    """A header that claims terabytes is refused before a byte of them."""
    first = generator_pb2.GenerateRequest()
    first.CopyFrom(FIRST)
    first.start.encoder_result.features.shape[:] = [2**40, 8]
    async with serve(max_result_mib=1) as running:
        code = grpc.StatusCode.INVALID_ARGUMENT
        await refused(running, [first, *REST], code, "at most 1048576 bytes")


async def test_a_required_encoder_is_required(serve: Any) -> None:
    """--require-encoder refuses results that do not say who made them."""
    async with serve(require_encoder="eye@r1") as running:
        code = grpc.StatusCode.INVALID_ARGUMENT
        await refused(running, request(features(2)), code, "version: expected 1, .*eye made it")
        described = running.generator.describe()
        assert list(described.accepted_versions) == [1]
        assert described.required_encoder.revision == "r1"


async def silent(first: Any) -> AsyncIterator[bytes]:
    """A caller that sends one message, and then nothing."""
    yield first.SerializeToString()
    await asyncio.sleep(60)


def open_call(running, messages: AsyncIterator[bytes], **options: Any) -> Any:
    """A call with messages that come over time."""
    call = running.service.channel.stream_stream(
        "/tensorway.v1.GeneratorService/Generate",
        response_deserializer=generator_pb2.GenerateResponse.FromString,
    )
    return call(messages, **options)


async def test_a_caller_that_stops_sending_is_not_waited_for(serve: Any) -> None:
    """Its room is given back after --receive-timeout."""
    async with serve(receive_timeout=0.2) as running:
        with pytest.raises(grpc.aio.AioRpcError, match=r"no message .* within 0.2 s") as raised:
            [_ async for _ in open_call(running, silent(FIRST))]
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert running.generator._admission.bytes == 0


async def test_over_the_limit_of_requests_is_refused_at_once(serve: Any) -> None:
    """One request too many is RESOURCE_EXHAUSTED; room comes back with each end."""
    async with serve(EchoEngine(delay=60), max_requests=2) as running:
        long = [opening(LONG)]
        holders = [open_call(running, ended(opening(LONG))) for _ in range(2)]
        for call in holders:
            await call.read()
        for _ in range(3):
            error = await refused(running, long, grpc.StatusCode.RESOURCE_EXHAUSTED)
            assert error.retry_after
        for call in holders:
            call.cancel()
        await idle(running)
        running.engine.delay = 0
        assert (await running.service.generate(long)).token_ids == LONG[:16]


async def test_over_the_limit_of_bytes_is_refused_at_once(serve: Any) -> None:
    """Results of several callers together are bounded, too."""
    big = features(40_000, width=8)
    async with serve(max_result_mib=2, max_held_mib=2, receive_timeout=60.0) as running:
        shape = running.engine.info.shape
        info = running.engine.info
        roomy = type(shape)(shape.hidden_size, shape.vocab_size, 100_000, shape.dtype)
        running.generator.info = type(info)(info.names, info.root, roomy, 5, True)
        holder = open_call(running, silent(request(big)[0]))
        while not running.generator._admission.bytes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        await refused(running, request(big), code, "no room for 1280000")
        holder.cancel()
        while running.generator._admission.bytes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await running.service.generate(request(big))).usage.prompt_tokens == 40_002


@pytest.mark.parametrize("stage", ["receiving", "generating"])
async def test_cancel_reaches_every_stage(serve: Any, stage: str) -> None:
    """Within a moment nothing is left in service or engine."""
    async with serve(EchoEngine(delay=60)) as running:
        messages = silent(FIRST) if stage == "receiving" else ended(opening(LONG))
        call = open_call(running, messages)
        async with asyncio.timeout(60):
            if stage == "generating":
                await call.read()
                assert running.engine.running == 1
            while not running.generator.load().requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        call.cancel()
        await idle(running)


async def idle(running) -> None:
    """Wait until nothing is left in service and engine."""
    async with asyncio.timeout(30):
        while running.engine.running or running.generator.load().requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ended(first: Any) -> AsyncIterator[bytes]:
    """A caller that sends one message and closes its side."""
    yield first.SerializeToString()


@pytest.mark.parametrize("caller", [True, False])
async def test_deadlines_reach_the_engine(serve: Any, caller: bool) -> None:
    """The caller's deadline, or else --generate-timeout, ends the work in the engine."""
    flags = {} if caller else {"generate_timeout": 0.2}
    async with serve(EchoEngine(delay=60), **flags) as running:
        call = open_call(running, ended(opening(LONG)), timeout=0.2 if caller else None)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            [_ async for _ in call]
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await idle(running)


async def test_a_reader_that_stops_reading_ends_by_its_deadline(serve: Any) -> None:
    """Nothing piles up for it, and its room comes back."""
    ids = [9] * 50
    async with serve(generate_timeout=2.0) as running:
        call = open_call(running, ended(opening(ids)))
        await call.read()
        await idle(running)
        call.cancel()


async def test_the_model_says_what_it_accepts(serve: Any) -> None:
    """GetModel is what negotiation reads."""
    async with serve(max_result_mib=3) as running:
        asked = generator_pb2.GeneratorServiceGetModelRequest(model="alias")
        model = await running.service.generator.GetModel(asked)
    assert (model.model, model.hidden_size, model.vocab_size, model.max_model_len) == (
        "echo",
        8,
        100,
        64,
    )
    assert list(model.accepted_versions) == [0, 1]
    assert list(model.accepted_formats) == ["linear_embeddings"]
    assert model.element_type == tensor_pb2.ELEMENT_TYPE_BFLOAT16
    assert (model.max_result_bytes, model.max_images) == (3 << 20, 4)


async def test_nothing_of_a_tensor_is_logged(serve: Any, caplog) -> None:
    """A refused payload leaves no content in the log."""
    with caplog.at_level(logging.DEBUG):
        async with serve() as running:
            await refused(running, [b"\xffsecret"], grpc.StatusCode.INVALID_ARGUMENT)
    assert "secret" not in caplog.text

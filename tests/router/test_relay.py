"""Generators and encoders behind the router: streams pass through, bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from router.config import Config
from tensorway import serving
from tensorway.channels import Dialer
from tensorway.errors import Unavailable
from tensorway.handlers import Service
from tensorway.options import DialOptions, ListenOptions
from tensorway.registration import registered
from tensorway.v1 import (
    encoder_pb2,
    encoder_pb2_grpc,
    generator_pb2,
    generator_pb2_grpc,
    handoff_pb2,
    model_pb2,
)
from tests.router.conftest import Running, routing


class FakeModel:
    """A generator that tells how many bytes it was sent, and an encoder of as many chunks."""

    def __init__(self) -> None:
        self.model = model_pb2.Model(name="m")
        self.starts: list[Any] = []
        self.received = 0
        self.holds: asyncio.Event | None = None
        self.fails: Exception | None = None
        self.active = 0

    async def Generate(self, requests: Any, context: Any) -> Any:
        """One message at once, one more at the end."""
        self.active += 1
        try:
            async for answer in self._generate(requests):
                yield answer
        finally:
            self.active -= 1

    async def _generate(self, requests: Any) -> Any:
        self.starts.append((await anext(requests)).start)
        if self.fails:
            raise self.fails
        yield generator_pb2.GenerateResponse(token_ids=[1])
        if self.holds:
            await self.holds.wait()
        async for request in requests:
            self.received += len(request.chunk.data)
        yield generator_pb2.GenerateResponse(token_ids=[self.received])

    async def GetModel(self, request: Any, context: Any) -> Any:
        """The model's name, as it was asked for."""
        return generator_pb2.GeneratorServiceGetModelResponse(model=request.model, hidden_size=576)

    async def Encode(self, request: Any, context: Any) -> Any:
        """As many chunks as images."""
        if self.fails:
            raise self.fails
        self.starts.append(request)
        for number in range(len(request.images)):
            yield handoff_pb2.EncoderResultChunk(chunk={"offset": number, "data": b"x"})


class Encoder:
    """The model as an EncoderService, whose Generate is not a stream of requests."""

    def __init__(self, model: FakeModel) -> None:
        self.Encode = model.Encode

    async def Generate(self, request: Any, context: Any) -> Any:
        """The target model's name in tokens."""
        yield generator_pb2.GenerateResponse(text=request.target_model)


async def add(router: Running, model: FakeModel, task: int, endpoint: str = "t.m.e") -> FakeModel:
    """The model's real server, once the router knows it."""
    model.model.tasks[:] = [task]
    generator = generator_pb2.DESCRIPTOR.services_by_name["GeneratorService"]
    encoder = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"]
    services = (Service(generator, model), Service(encoder, Encoder(model)))
    server = serving.Server(ListenOptions(grace=0.5), services)
    await router.stack.enter_async_context(server)
    await server.set_serving()
    worker = model_pb2.Worker(
        endpoint=endpoint, address=f"127.0.0.1:{server.port}", model=model.model
    )
    before = len(router.fleet.workers())
    dialer = Dialer(DialOptions())
    lease = registered([router.address], dialer, worker, model_pb2.WorkerLoad)
    await router.stack.enter_async_context(lease)
    await router.until(lambda: len(router.fleet.workers()) > before)
    return model


def start(model: str = "m") -> generator_pb2.GenerateRequest:
    """The first message of a generation."""
    return generator_pb2.GenerateRequest(start={"model": model, "prompt_token_ids": [5, 6]})


def chunk(size: int) -> generator_pb2.GenerateRequest:
    """A piece of a tensor."""
    return generator_pb2.GenerateRequest(chunk={"data": b"x" * size})


def generators(router: Running) -> Any:
    """GeneratorService of the router."""
    return generator_pb2_grpc.GeneratorServiceStub(router.channel)


def encoders(router: Running) -> Any:
    """EncoderService of the router."""
    return encoder_pb2_grpc.EncoderServiceStub(router.channel)


async def test_a_generation_passes_both_ways_as_it_comes(router: Running) -> None:
    """The first tokens come before the last chunk was sent, and nothing is lost."""
    model = await add(router, FakeModel(), model_pb2.TASK_GENERATE)
    stream = generators(router).Generate()

    await stream.write(start())
    first = await stream.read()
    for _ in range(64):
        await stream.write(chunk(100_000))
    await stream.done_writing()
    last = await stream.read()

    assert (list(first.token_ids), list(last.token_ids)) == ([1], [6_400_000])
    assert model.starts == [start().start]
    assert await stream.read() is grpc.aio.EOF


async def test_a_slow_generator_holds_its_caller_back(router: Running) -> None:
    """The router keeps a few messages, not the tensor."""
    model = FakeModel()
    model.holds = asyncio.Event()
    await add(router, model, model_pb2.TASK_GENERATE)
    stream = generators(router).Generate()
    await stream.write(start())
    await stream.read()
    written = 0

    async def write() -> None:
        nonlocal written
        for _ in range(64):
            await stream.write(chunk(1_000_000))
            written += 1
        await stream.done_writing()

    writing = asyncio.create_task(write())
    await asyncio.sleep(0.5)
    held = written
    model.holds.set()
    await writing

    assert held < 40
    assert list((await stream.read()).token_ids) == [64_000_000]


async def test_an_alias_of_a_generator() -> None:
    """The generator is asked by its own name; what it answers has the requested one."""
    async with routing(Config(aliases={"alias": {"m": 1}})) as router:
        model = await add(router, FakeModel(), model_pb2.TASK_GENERATE)

        stream = generators(router).Generate(iter([start("alias"), chunk(10)]))
        tokens = [list(answer.token_ids) async for answer in stream]
        asked = generator_pb2.GeneratorServiceGetModelRequest(model="alias")
        told = await generators(router).GetModel(asked)

    assert tokens == [[1], [10]]
    assert model.starts == [start("m").start]
    assert (told.model, told.hidden_size) == ("alias", 576)


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([], "INVALID_ARGUMENT"),
        ([chunk(1)], "INVALID_ARGUMENT"),
        ([start("x")], "NOT_FOUND"),
    ],
)
async def test_a_stream_that_begins_wrong_is_refused(
    router: Running, messages: list[Any], code: str
) -> None:
    """Nothing, a chunk, or an unknown model first."""
    await add(router, FakeModel(), model_pb2.TASK_GENERATE)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generators(router).Generate(iter(messages)).read()

    assert caught.value.code().name == code


async def test_a_cancelled_generation_ends_at_the_generator(router: Running) -> None:
    """Within a moment, and the router holds nothing of it."""
    model = FakeModel()
    model.holds = asyncio.Event()
    await add(router, model, model_pb2.TASK_GENERATE)
    stream = generators(router).Generate()
    await stream.write(start())
    await stream.read()

    stream.cancel()
    await router.until(lambda: model.active == 0, seconds=2)
    await router.until(lambda: router.fleet.workers()[0].requests == 0, seconds=2)


async def test_a_generator_that_declines_is_replaced_before_the_first_answer(
    router: Running,
) -> None:
    """The first message is sent again; the rest goes only to the one that answers."""
    bad, good = FakeModel(), FakeModel()
    bad.fails = Unavailable("not now", reason="LOADING")
    await add(router, bad, model_pb2.TASK_GENERATE, "t.a.e")
    await add(router, good, model_pb2.TASK_GENERATE, "t.b.e")

    for _ in range(2):
        stream = generators(router).Generate()
        await stream.write(start())
        first = await stream.read()
        await stream.write(chunk(7))
        await stream.done_writing()
        assert list(first.token_ids) == [1]
        await stream.read()

    assert len(bad.starts) >= 1
    assert good.received == 14


async def test_a_generation_whose_worker_is_lost_midway_ends_with_unavailable(
    router: Running,
) -> None:
    """Half an answer cannot be begun again."""
    for endpoint in ("t.a.e", "t.b.e"):
        model = FakeModel()
        model.holds = asyncio.Event()
        await add(router, model, model_pb2.TASK_GENERATE, endpoint)
    stream = generators(router).Generate()
    await stream.write(start())
    await stream.read()

    busy = next(worker for worker in router.fleet.workers() if worker.requests)
    router.fleet.leave(busy)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_encoders_result_passes(router: Running) -> None:
    """Chunks in order, from the encoder of the model that was named."""
    model = await add(router, FakeModel(), model_pb2.TASK_ENCODE)
    request = encoder_pb2.EncodeRequest(model="m", images=[{"data": b"1"}, {"data": b"2"}])

    chunks = [part.chunk.offset async for part in encoders(router).Encode(request)]

    assert chunks == [0, 1]
    assert model.starts == [request]


async def test_an_encoder_generates_too(router: Running) -> None:
    """EncoderService/Generate is routed by the encoder's name."""
    await add(router, FakeModel(), model_pb2.TASK_ENCODE)
    request = encoder_pb2.EncoderServiceGenerateRequest(model="m", target_model="target")

    answers = [answer.text async for answer in encoders(router).Generate(request)]

    assert answers == ["target"]


async def test_an_encoder_that_declines_is_replaced(router: Running) -> None:
    """Nothing was answered yet, so another one may."""
    bad, good = FakeModel(), FakeModel()
    bad.fails = Unavailable("not now", reason="LOADING")
    await add(router, bad, model_pb2.TASK_ENCODE, "t.a.e")
    await add(router, good, model_pb2.TASK_ENCODE, "t.b.e")
    request = encoder_pb2.EncodeRequest(model="m", images=[{"data": b"1"}])

    for _ in range(2):
        assert [part async for part in encoders(router).Encode(request)]
    assert len(good.starts) == 2

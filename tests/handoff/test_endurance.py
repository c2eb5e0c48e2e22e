"""A real engine under callers who send nonsense, leave, stall, or come all at once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from tensorway.channels import Dialer
from tensorway.handoff import frames, header, stream
from tensorway.handoff.features import Features
from tensorway.options import DialOptions
from tensorway.v1 import encoder_pb2, generator_pb2, handoff_pb2
from tests.handoff.services import GENERATE, Answer, Launcher, Service, gathered

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

IMAGE, WIDTH, VOCABULARY = 49152, 576, 49152
IDS = [1, 4093, 198, IMAGE, 1780, 314, 451, 47]
MIB = 1 << 20
SLACK = 96 * MIB


def features(*lengths: int, seed: int = 0, width: int = WIDTH) -> Features:
    """Rows as large as embeddings are."""
    rows = np.random.default_rng(seed).normal(0, 0.1, (sum(lengths), width)).astype(np.float32)
    return Features(rows, (0, *(int(end) for end in np.cumsum(lengths))), IMAGE)


def request(
    ids: Iterable[int] = IDS, result: Features | None = None, tokens: int = 4, **fields: Any
) -> list[Any]:
    """All messages of a request."""
    result = result or features(16)
    fields = {"encoder_result": header.write(result), **fields}
    params = generator_pb2.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    start = generator_pb2.GenerateStart(
        model="smollm2", prompt_token_ids=ids, sampling_params=params, **fields
    )
    return [generator_pb2.GenerateRequest(start=start), *stream.cut(result.rows)]


async def works(generator: Service) -> Answer:
    """A good request, which must be answered as ever."""
    answer = await generator.generate(request())
    assert len(answer.token_ids) == 4
    return answer


def edited(**fields: Any) -> list[Any]:
    """A request whose header claims something else."""
    messages = request()
    result = messages[0].start.encoder_result
    for name, value in fields.items():
        part = result.features if name in ("shape", "element_type") else result
        if isinstance(value, list):
            del getattr(part, name)[:]
            getattr(part, name).extend(value)
        else:
            setattr(part, name, value)
    return messages


def poisoned(value: float) -> list[Any]:
    """A request with one number that is none."""
    result = features(16)
    result.rows[7, 100] = value
    return request(result=result)


def short() -> list[Any]:
    """A request that lacks its last byte."""
    result = features(16)
    data = memoryview(result.rows.tobytes())
    end = handoff_pb2.EncoderResultEnd(rows=16, bytes=len(data), crc32c=1)
    return [request()[0], frames.chunk(0, data[:-1]), frames.end(end)]


MALFORMED: dict[str, list[Any]] = {
    "two placeholders": request([*IDS, IMAGE]),
    "no placeholder": request([1, 2, 3]),
    "more results than placeholders": request(result=features(8, 8)),
    "token out of range": request([VOCABULARY + 1, *IDS]),
    "largest token": request([2**32 - 2, *IDS]),
    "width - 1": request(result=features(16, width=WIDTH - 1)),
    "width + 1": request(result=features(16, width=WIDTH + 1)),
    "rank 1": edited(shape=[16 * WIDTH]),
    "rank 3": edited(shape=[16, WIDTH, 1]),
    "int8": edited(element_type=4),
    "newer version": edited(version=2),
    "zero rows": edited(row_splits=[0, 0, 16]),
    "terabytes": edited(shape=[2**40, WIDTH], row_splits=[0, 2**32 - 1]),
    "too long": request(result=features(2100)),
    "one byte short": short(),
    "nan": poisoned(np.nan),
    "inf": poisoned(np.inf),
    "out of order": [request()[0], *reversed(request()[1:])],
    "pickle": [request()[0], b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00."],
}


@pytest.mark.parametrize("messages", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_payloads_leave_the_engine_serving(
    generator: Service, messages: list[Any]
) -> None:
    """INVALID_ARGUMENT for the caller, and nothing happened to the engine."""
    with pytest.raises(grpc.aio.AioRpcError, match=r"expected|not a valid|no message") as raised:
        await generator.generate(messages)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await works(generator)


async def test_penalties_on_a_placeholder_outside_the_vocabulary(generator: Service) -> None:
    """Penalties index by token, and the placeholder's id is none of the model's."""
    messages = request()
    messages[0].start.sampling_params.repetition_penalty = 1.2
    messages[0].start.sampling_params.presence_penalty = 1.0
    assert len((await generator.generate(messages)).token_ids) == 4
    await works(generator)


async def test_a_fuzzed_stream_ends_every_call_and_hurts_nobody(generator: Service) -> None:
    """Bytes changed, messages dropped, doubled and exchanged, 200 times."""
    chance = random.Random(7)
    expected = (await works(generator)).token_ids
    for _ in range(200):
        messages = [m if isinstance(m, bytes) else m.SerializeToString() for m in request()]
        try:
            await generator.generate(spoiled(messages, chance), timeout=20)
        except grpc.aio.AioRpcError as error:
            allowed = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
            assert error.code() in allowed, error.details()  # noqa: PT017
    assert (await works(generator)).token_ids == expected


def spoiled(messages: list[bytes], chance: random.Random) -> list[bytes]:
    """The messages with one to three things wrong."""
    for _ in range(chance.randint(1, 3)):
        index = chance.randrange(len(messages))
        match chance.randrange(5):
            case 0:
                changed = bytearray(messages[index])
                for _ in range(chance.randint(1, 4)):
                    changed[chance.randrange(len(changed))] = chance.randrange(256)
                messages[index] = bytes(changed)
            case 1:
                messages[index] = messages[index][: chance.randrange(len(messages[index]))]
            case 2:
                messages.insert(index, messages[index])
            case 3 if len(messages) > 1:
                del messages[index]
            case _:
                chance.shuffle(messages)
        messages = [message for message in messages if message] or [b"\xff"]
    return messages


async def test_peers_that_die_midway_leave_nothing(generator: Service) -> None:
    """A connection lost between two chunks gives back what was held for it."""
    messages = request([1, IMAGE, 2], features(1500))
    serialized = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]

    async def dying() -> AsyncIterator[bytes]:
        for message in serialized[:-3]:
            yield message
        await asyncio.sleep(60)

    for _ in range(3):
        async with Dialer(DialOptions()).open(generator.address) as channel:
            call = channel.stream_stream(GENERATE)(dying())
            await asyncio.wait({asyncio.ensure_future(call.read())}, timeout=0.2)
        await generator.idle()
    await works(generator)


async def test_cancelled_work_leaves_the_engine_within_a_second(generator: Service) -> None:
    """Cancel before and during the tokens: the engine has nothing running after it."""
    for wait in (False, True):
        call = generator.generator.Generate(iter(request_messages(tokens=1000)))
        if wait:
            await call.read()
        call.cancel()
        await generator.idle(10)
        assert await running(generator) == 0


def request_messages(tokens: int) -> list[generator_pb2.GenerateRequest]:
    """A request as messages."""
    parse = generator_pb2.GenerateRequest.FromString
    return [
        parse(message) if isinstance(message, bytes) else message
        for message in request(tokens=tokens)
    ]


async def running(generator: Service) -> float:
    """Requests in the engine, as vLLM itself counts them, once its count is fresh."""
    await works(generator)
    lines = (await generator.metrics()).splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))
    )


async def test_deadlines_end_work_at_every_stage(generator: Service) -> None:
    """A deadline of a moment, and one in the middle of the tokens."""
    for timeout in (0.001, 0.3):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await generator.generate(request(tokens=1000), timeout=timeout)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await generator.idle()


async def test_readers_that_stop_reading_cost_no_memory(generator: Service) -> None:
    """Calls of which nothing is read end with their deadline, and memory stays."""

    async def stalled() -> None:
        calls = [
            generator.generator.Generate(iter(request_messages(tokens=60)), timeout=60)
            for _ in range(8)
        ]
        await asyncio.gather(*(call.read() for call in calls))
        await generator.idle(60)
        for call in calls:
            call.cancel()

    await stalled()
    before = generator.resident()
    await stalled()
    assert generator.resident() - before < SLACK


@pytest.fixture(scope="module")
async def colors(launcher: Launcher, generator: Service, smollm2) -> Service:
    """An encoder service in front of the generator."""
    return await launcher.start(
        "encoder_service",
        *("--backend", "encoder_service.colors:ColorEncoder", "--backend-model", str(smollm2)),
        *("--name", "colors", "--generator", generator.address, "--encoder-cache-mib", "0"),
    )


def asked(tokens: int = 2) -> encoder_pb2.EncoderServiceGenerateRequest:
    """A request with a picture."""
    return encoder_pb2.EncoderServiceGenerateRequest(
        model="colors",
        target_model="smollm2",
        prompt_token_ids=IDS,
        images=[handoff_pb2.ImageInput(data=PICTURE)],
        sampling_params=generator_pb2.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True
        ),
    )


# A grey pixel.
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c6368686800000304018155dcaf0b0000000049454e44ae426082"
)


async def test_two_hundred_at_once_all_end_with_an_answer(
    generator: Service, colors: Service
) -> None:
    """A burst is answered, all of it, and memory returns to where it was."""

    async def burst() -> None:
        calls = [gathered(colors.encoder.Generate(asked(), timeout=100)) for _ in range(200)]
        answers = await asyncio.gather(*calls)
        assert {len(answer.token_ids) for answer in answers} == {2}
        assert len({tuple(answer.token_ids) for answer in answers}) == 1
        await generator.idle()

    await burst()
    before = generator.resident(), colors.resident()
    await burst()
    after = generator.resident(), colors.resident()
    assert max(now - then for now, then in zip(after, before, strict=True)) < SLACK


async def test_an_encoder_killed_midway_is_a_lost_caller(
    generator: Service, launcher: Launcher, smollm2
) -> None:
    """The generator drops its work; the caller of the encoder gets UNAVAILABLE."""
    flags = ("--backend", "encoder_service.colors:ColorEncoder", "--backend-model", str(smollm2))
    encoder = await launcher.start(
        "encoder_service", *flags, "--name", "colors", "--generator", generator.address
    )
    call = encoder.encoder.Generate(asked(tokens=1000))
    await call.read()
    encoder.process.send_signal(signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await to_the_end(call)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    await generator.idle()


async def test_a_dead_engine_ends_the_service(launcher: Launcher, smollm2) -> None:
    """In flight: UNAVAILABLE; health: NOT_SERVING or gone; exit status: not zero."""
    generator = await launcher.start(
        "generator_service",
        *(str(smollm2), "--served-model-name", "smollm2", "--max-model-len", "256"),
        *("--enforce-eager", "--gpu-memory-utilization", "0.2"),
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert await generator.health() == health_pb2.HealthCheckResponse.SERVING
    call = generator.generator.Generate(iter(request_messages(tokens=200)))
    await call.read()
    (engine,) = [pid for pid in generator.children() if name_of(pid).startswith("VLLM::Engine")]
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await to_the_end(call)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await asyncio.wait_for(generator.process.wait(), 60) == 1


async def to_the_end(call: Any) -> None:
    """Read until nothing more comes."""
    while await call.read() is not grpc.aio.EOF:
        pass


def name_of(pid: int) -> str:
    """A process's own title."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        return file.read().replace(b"\0", b" ").decode()

"""What the handoff costs: bytes per second, stalls of the event loop, time to first token.

    python -m bench.handoff [--rounds 15] [--mib 100]
    python -m bench.handoff --model FOLDER [--rounds 15]

Without a model the real services are measured before an engine that answers at once; the
sender and the receiver are two processes on one machine. `floor` is the same bytes through
a bare gRPC stream, copied into one buffer. With a model, an image of 576 rows is generated
from by turns inline (encoder in the generator) and external (both services).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np

from encoder_service.generators import Generators
from encoder_service.handoff import Prepared
from generator_service.engine import EngineInfo, Params, Piece
from generator_service.model import Generator
from generator_service.options import GeneratorOptions
from generator_service.servicer import GeneratorServicer, Holder
from tensorway.channels import Dialer
from tensorway.encoder import VisionEncoderBackend
from tensorway.handlers import Service
from tensorway.handoff import frames, header, stream
from tensorway.handoff.features import Features
from tensorway.options import MIB, DialOptions, ListenOptions
from tensorway.prompt import ModelShape, Prompt
from tensorway.serving import Server
from tensorway.v1 import encoder_pb2, generator_pb2, handoff_pb2, tensor_pb2

WIDTH, TOKEN, ROWS = 4096, 7, 576
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHAPE = ModelShape(WIDTH, 32_000, 1_000_000, BFLOAT16)
IDENTITY = handoff_pb2.EncoderIdentity(model="bench", element_type=tensor_pb2.ELEMENT_TYPE_BFLOAT16)


class Lag:
    """The longest time for which an event loop did nothing else."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - before - 0.001)

    def take(self) -> float:
        """Seconds since the last time it was asked."""
        longest, self.longest = self.longest, 0.0
        return longest


class Instant:
    """Answers at once, with the longest stall since the last answer, in microseconds."""

    def __init__(self) -> None:
        self.info = EngineInfo(("bench",), "nowhere", SHAPE, 0, has_tokenizer=True)
        self._lag = Lag()

    async def generate(self, prompt: Prompt, params: Params) -> AsyncGenerator[Piece, None]:
        """One token."""
        del params
        assert prompt.rows is not None
        yield Piece([int(self._lag.take() * 1e6)], finish_reason="length")

    def check(self) -> None:
        """Never dead."""

    def close(self) -> None:
        """Nothing to end."""


class Floor:
    """GeneratorService that only copies what comes into one buffer."""

    def __init__(self, size: int) -> None:
        self._buffer = memoryview(bytearray(size))

    async def Generate(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Nothing, once everything came."""
        del context
        place = 0
        async for message in requests:
            self._buffer[place : place + len(message)] = message
            place += len(message)
        yield b""

    async def GetModel(self, request: Any, context: Any) -> None:
        """Not asked."""


class NoiseEncoder(VisionEncoderBackend):
    """576 rows of noise for every image, of the width of the model in a folder."""

    def build(self, model_id: str) -> None:
        """Make the rows."""
        config = json.loads((Path(model_id) / "config.json").read_text())
        noise = np.random.default_rng(0).normal(0, 0.1, (ROWS, config["hidden_size"]))
        self._rows = noise.astype(BFLOAT16)
        self.image_token_id = config["vocab_size"]

    def forward_batch(self, items: Sequence[Any]) -> Sequence[Any]:
        """The same rows for each."""
        return [self._rows for _ in items]


async def serve(kind: str, mib: int) -> None:
    """The receiving process: prints its port."""
    descriptor = generator_pb2.DESCRIPTOR.services_by_name["GeneratorService"]
    if kind == "floor":
        service = Service(descriptor, Floor((mib + 1) * MIB), codecs={"Generate": (None, None)})
    else:
        options, holder = GeneratorOptions(max_result_mib=mib), Holder()
        holder.loaded = Generator(Instant(), options, max_images=16)
        service = GeneratorServicer(holder, options).service()
    async with Server(ListenOptions(), [service]) as server:
        print(server.port, flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def receiver(kind: str, mib: int) -> AsyncIterator[Generators]:
    """A receiving process, and the encoder's own client of it."""
    command = (sys.executable, "-m", "bench.handoff", "--serve", kind, "--mib", str(mib))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        dialer = Dialer(DialOptions())
        async with dialer.open(f"127.0.0.1:{port}") as channel:
            yield Generators(channel, dialer)
    finally:
        process.kill()
        await process.wait()


def prepared(mib: int, version: int) -> Prepared:
    """A request with one image of that size."""
    rows = np.random.default_rng(0).standard_normal((mib * MIB // WIDTH // 2, WIDTH), np.float32)
    features = Features(rows.astype(BFLOAT16), (0, len(rows)), TOKEN)
    start = generator_pb2.GenerateStart(
        model="bench",
        prompt_token_ids=[1, TOKEN, 2],
        encoder_result=header.write(features, version, IDENTITY),
    )
    return Prepared(start, features)


async def transfer(generators: Generators, request: Prepared) -> tuple[float, float]:
    """Seconds until the answer, and the receiver's longest stall in seconds."""
    started = time.perf_counter()
    answers = [answer async for answer in generators.generate(request.messages(), 60)]
    elapsed = time.perf_counter() - started
    answer = generator_pb2.GenerateResponse.FromString(answers[0])
    return elapsed, sum(answer.token_ids) / 1e6


def rebuild(request: Prepared) -> float:
    """Seconds to put the tensor together from messages that are there already."""
    messages = [*request.messages()][1:]
    started = time.perf_counter()
    layout = header.read(request.start.encoder_result, header.Accepts(1 << 40, 16))
    assembly = stream.Assembly(layout)
    for message in messages:
        match frames.read(message):
            case frames.Chunk() as chunk:
                assembly.add(chunk)
            case handoff_pb2.EncoderResultEnd() as end:
                assembly.finish(end)
    return time.perf_counter() - started


async def bandwidth(mib: int, rounds: int) -> None:
    """Print the rates of both versions, beside the floor."""
    size = mib * MIB / 1e9
    requests = {"version 0": prepared(mib, 0), "version 1": prepared(mib, 1)}
    async with receiver("floor", mib) as floor, receiver("real", mib) as real:
        cells = {"floor": (floor, requests["version 0"])} | {
            name: (real, request) for name, request in requests.items()
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in cells}
        for name, (generators, request) in [*cells.items()] * (rounds + 2):
            found[name].append(await transfer(generators, request))
    for name, results in found.items():
        times = [seconds for seconds, _ in results[2:]]
        stall = max(stall for _, stall in results[2:])
        print(
            f"{name:10} p50 {size / statistics.median(times):5.2f} GB/s, "
            f"best {size / min(times):5.2f}, longest stall {stall * 1e3:5.1f} ms"
        )
    alone = statistics.median(rebuild(requests["version 0"]) for _ in range(rounds))
    print(f"{'rebuild':10} p50 {size / alone:5.2f} GB/s, without the network")


@asynccontextmanager
async def started(module: str, *flags: str) -> AsyncIterator[str]:
    """A service in its own process; gives its address once it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--port", "0", *flags),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **os.environ},
    )
    assert process.stderr is not None
    address = ""
    async for line in process.stderr:
        if match := re.search(rb"listening on (\S+)", line):
            address = match[1].decode()
        if b" ready: " in line:
            break
    draining = asyncio.create_task(process.stderr.read())
    try:
        yield address
    finally:
        process.terminate()
        await asyncio.wait({draining})


async def first_token(model: str, rounds: int) -> None:
    """Print the time to the first token, inline and external."""
    encoder = ("--backend", "bench.handoff:NoiseEncoder", "--backend-model", model)
    off = ("--encoder-cache-mib", "0")
    engine = ("--served-model-name", "bench", "--max-model-len", "2048", "--enforce-eager")
    memory = ("--gpu-memory-utilization", "0.3", "--no-enable-prefix-caching")
    async with (
        started("generator_service", model, *engine, *memory, *encoder, *off) as behind,
        started("encoder_service", *encoder, *off, "--generator", behind, "--name", "e") as front,
        Dialer(DialOptions()).open(behind) as inline,
        Dialer(DialOptions()).open(front) as external,
    ):
        cells = {"inline": _inline(inline), "external": _external(external)}
        found: dict[str, list[float]] = {name: [] for name in cells}
        for name, ask in [*cells.items()] * (rounds + 2):
            found[name].append(await ask())
    medians = {name: statistics.median(times[2:]) for name, times in found.items()}
    for name, median in medians.items():
        print(f"{name:10} p50 {median * 1e3:6.1f} ms to the first token")
    print(f"{'ratio':10} {medians['external'] / medians['inline']:.3f}")


def _fields() -> dict[str, Any]:
    picture = bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
        "0000000c49444154789c6368686800000304018155dcaf0b0000000049454e44ae426082"
    )
    return {
        "prompt_token_ids": [1, 4093, 198, 49152, 1780, 314, 451, 47],
        "images": [handoff_pb2.ImageInput(data=picture)],
        "sampling_params": generator_pb2.SamplingParams(temperature=0, max_tokens=1),
    }


def _inline(channel: grpc.aio.Channel) -> Callable[[], Awaitable[float]]:
    start = generator_pb2.GenerateStart(model="bench", **_fields())
    message = generator_pb2.GenerateRequest(start=start).SerializeToString()
    call: Any = channel.stream_stream("/tensorway.v1.GeneratorService/Generate")  # type: ignore[call-arg]
    return lambda: _timed(lambda: call(iter([message])))


def _external(channel: grpc.aio.Channel) -> Callable[[], Awaitable[float]]:
    request = encoder_pb2.EncoderServiceGenerateRequest(
        model="e", target_model="bench", **_fields()
    )
    message = request.SerializeToString()
    call: Any = channel.unary_stream("/tensorway.v1.EncoderService/Generate")  # type: ignore[call-arg]
    return lambda: _timed(lambda: call(message))


async def _timed(ask: Callable[[], Any]) -> float:
    started_at = time.perf_counter()
    async for _ in ask():
        return time.perf_counter() - started_at
    raise RuntimeError("no answer")


def main() -> None:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each cell")
    parser.add_argument("--mib", type=int, default=100, help="size of the tensor")
    parser.add_argument("--model", help="folder of a text model; measures the first token")
    parser.add_argument("--serve", choices=("real", "floor"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.mib))
    elif options.model:
        asyncio.run(first_token(options.model, options.rounds))
    else:
        asyncio.run(bandwidth(options.mib, options.rounds))


if __name__ == "__main__":
    main()

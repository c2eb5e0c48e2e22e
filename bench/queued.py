"""What work that waits takes: memory of a worker and its engine's process for each token."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np

from bench.clients import NAME, GrpcClient
from bench.gpu import HOST, free_port, registered
from bench.processes import MIB, Launcher, Process, resident_mib
from tensorway.channels import message_limits
from tensorway.v1 import model_pb2, model_pb2_grpc

INPUTS, TOKENS = 512, 128
"""Of each request that waits."""
_SETTLE_SECONDS = 30.0
STEP_SECONDS = 3
# An engine that finishes 16 inputs every few seconds: all that is sent waits.
_STUCK = ("--engine", "fake", "--step-seconds", str(STEP_SECONDS), "--engine-timeout", "60")
_ROOM = ("--max-queued-tokens", str(1 << 30), "--max-queued-bytes", str(1 << 34))
_LENGTH = ("--max-model-len", str(TOKENS), "--max-queued-inputs", str(1 << 20))


class Waiting(NamedTuple):
    """Memory while so many tokens wait."""

    tokens: int
    mib: float


def per_token(found: Sequence[Waiting]) -> float:
    """Bytes for each token more: the slope of a straight line through what was seen."""
    tokens, mib = zip(*found, strict=True)
    return float(np.polyfit(tokens, np.array(mib) * MIB, 1)[0])


def measure(requests: Sequence[int]) -> list[Waiting]:
    """Let more and more requests wait, and look at the memory each time."""
    with ExitStack() as stack:
        launcher = Launcher(stack, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        port = free_port()
        flags = (NAME, *_STUCK, *_ROOM, *_LENGTH, "--port", str(port))
        worker = launcher.python("worker", "embed_worker", *flags)
        launcher.wait_for("the worker", lambda: registered(port) > 0)
        return asyncio.run(_measure(port, worker, requests))


async def _measure(port: int, worker: Process, requests: Sequence[int]) -> list[Waiting]:
    found: list[Waiting] = []
    async with grpc.aio.insecure_channel(f"{HOST}:{port}", message_limits(256)) as channel:
        client, models = GrpcClient(channel), model_pb2_grpc.ModelServiceStub(channel)
        calls: list[asyncio.Task[bytes]] = []
        for count in requests:
            # Every character is a token to the fake engine, and two more are its own.
            texts = [f"{number:0{TOKENS - 2}}" for number in range(INPUTS)]
            body = client.prepare(texts)
            calls += [asyncio.create_task(client.call(body)) for _ in range(count - len(calls))]
            await _accepted(models, count * INPUTS * TOKENS)
            found.append(Waiting(count * INPUTS * TOKENS, resident_mib([worker])))
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return found


async def _accepted(models: Any, tokens: int) -> None:
    async with asyncio.timeout(_SETTLE_SECONDS):
        while True:
            (worker,) = (await models.ListWorkers(model_pb2.ListWorkersRequest())).workers
            if worker.load.tokens >= tokens:
                break
            await asyncio.sleep(0.1)
    # What was accepted is taken by the engine's process between two steps.
    await asyncio.sleep(STEP_SECONDS + 1)


def table(found: Sequence[Waiting]) -> str:
    """Memory by how much waits."""
    lines = ["### Memory of what waits", "", "| tokens that wait | MiB |", "| ---: | ---: |"]
    lines += [f"| {one.tokens} | {one.mib:.0f} |" for one in found]
    return "\n".join([*lines, "", f"{per_token(found):.1f} bytes a token.", ""])

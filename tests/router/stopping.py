"""A server that takes up no call: once it is told so on standard input, it stops.

gRPC has its calls by then, and resets them. Run as a program, it prints its port.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import grpc

from tensorway.channels import server_arguments


@asynccontextmanager
async def stopping() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A server that takes up no call, and its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.router.stopping"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process, f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        await process.communicate(b"\n")


async def main() -> None:
    """Hold the event loop until a line comes."""
    server = grpc.aio.server(options=server_arguments(1))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    click.echo(port)
    sys.stdin.readline()
    await server.stop(1)


if __name__ == "__main__":
    asyncio.run(main())

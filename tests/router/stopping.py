"""A server that takes up no call: once it is told so on standard input, it stops.

gRPC has its calls by then, and resets them. Run as a program, it prints its port.
"""

from __future__ import annotations

import asyncio
import sys

import click
import grpc

from tensorway.channels import server_arguments


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

"""A service as all of ours are written; the tests run it as a process of its own.

The model's name says what a call does: a number of seconds to take, or ``die``. It prints
its port, then each call as it arrives.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import click
from services import Fake

from tensorway import logs, metrics, serving, telemetry
from tensorway.channels import Dialer
from tensorway.flags import command
from tensorway.options import DialOptions, ListenOptions, ObserveOptions
from tensorway.v1 import embedding_pb2


@command("tensorway-test", ListenOptions, DialOptions, ObserveOptions)
def main(listen: ListenOptions, dial: DialOptions, observe: ObserveOptions) -> None:
    """Serve the test service."""
    logs.setup(observe)
    telemetry.setup("test", observe.otlp_endpoint)
    metrics.serve(observe)
    serving.run(partial(serve, listen, dial))


async def serve(listen: ListenOptions, dial: DialOptions, stop: serving.Stop) -> None:
    """Serve until asked to stop."""

    async def embed(
        request: embedding_pb2.EmbedRequest, context: Any
    ) -> embedding_pb2.EmbedResponse:
        click.echo(f"called {request.model}")
        if request.model == "die":
            stop.ask(RuntimeError("the engine died"))
            await asyncio.Event().wait()
        await asyncio.sleep(float(request.model))
        return embedding_pb2.EmbedResponse(model=request.model)

    Dialer(dial)
    services = Fake(embed).services(lasting=frozenset({"EmbedStream"}))
    async with serving.Server(listen, services) as server:
        await server.set_serving()
        click.echo(server.port)
        await stop.wait()


if __name__ == "__main__":
    main()

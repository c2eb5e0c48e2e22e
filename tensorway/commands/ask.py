"""What the commands that ask a router share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import click
import grpc
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table

from tensorway.channels import Dialer
from tensorway.flags import flag
from tensorway.options import TARGET, DialOptions
from tensorway.v1 import model_pb2_grpc

TIMEOUT_SECONDS = 10.0
_WIDTH = 1000


@dataclass(frozen=True)
class AskOptions:
    """Whom to ask, and how to show the answer."""

    router: str = flag("127.0.0.1:50051", help="Router, or worker, to ask, host:port.", type=TARGET)
    json: bool = flag(False, help="The answer as JSON.")


def ask(options: AskOptions, dial: DialOptions, method: str, request: Message) -> Any:
    """The answer of a method of ModelService; exits with one line when there is none."""
    try:
        return asyncio.run(_call(options.router, Dialer(dial), method, request))
    except grpc.aio.AioRpcError as error:
        raise click.ClickException(f"{options.router}: {error.details()}") from error


def show(options: AskOptions, answer: Message, table: Table) -> None:
    """Print the table, or the whole answer as JSON."""
    if options.json:
        click.echo(MessageToJson(answer, always_print_fields_with_no_presence=True))
    else:
        show_table(table)


def show_table(table: Table) -> None:
    """Print a table."""
    # Wide enough for any row: a terminal wraps it, and a pipe gets it whole.
    Console(width=_WIDTH).print(table)


def columns(*names: str) -> Table:
    """An empty table; names with a leading ">" are right-aligned."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        justify: Any = "right" if name.startswith(">") else "left"
        table.add_column(name.lstrip(">"), justify=justify)
    return table


async def _call(router: str, dialer: Dialer, method: str, request: Message) -> Any:
    async with dialer.open(router) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        call = getattr(stub, method)
        return await call(request, timeout=TIMEOUT_SECONDS, metadata=dialer.metadata())
